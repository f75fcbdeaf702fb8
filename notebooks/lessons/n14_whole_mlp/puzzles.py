"""The puzzles of 14_whole_mlp.ipynb."""

from __future__ import annotations

from lessons.n14_whole_mlp import interaction_puzzles, outer_puzzles
from lessons.shared import layer_puzzles
from lessons.shared.puzzle import Judge

PUZZLES = {name: layer_puzzles.PUZZLES[name] for name in ("layer", "chained")}
PUZZLES |= interaction_puzzles.PUZZLES | outer_puzzles.PUZZLES
attempt = Judge(PUZZLES).attempt
