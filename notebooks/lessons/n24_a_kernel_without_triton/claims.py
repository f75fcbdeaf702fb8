"""24, A kernel without Triton: each number in its prose stands in an output, but for what is claimed."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("24")
