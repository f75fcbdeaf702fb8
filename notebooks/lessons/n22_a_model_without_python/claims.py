"""22, A model without Python: each number in its prose stands in an output."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("22")
