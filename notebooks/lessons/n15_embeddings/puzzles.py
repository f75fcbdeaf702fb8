"""The puzzles of 15_embeddings.ipynb."""

from __future__ import annotations

from lessons.n15_embeddings import bag_puzzles, token_puzzles
from lessons.shared.puzzle import Judge

PUZZLES = bag_puzzles.PUZZLES | token_puzzles.PUZZLES
attempt = Judge(PUZZLES).attempt
