"""22: each number in the prose stands in an output of the notebook."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("22")
