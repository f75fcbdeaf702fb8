"""20, A tile, a pair and a cluster of SMs a model: its prose quotes what its cells print."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("20")
