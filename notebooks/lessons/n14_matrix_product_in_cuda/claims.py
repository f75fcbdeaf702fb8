"""14: its prose quotes what its cells print."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("14")
