"""19, The whole model in one kernel: its prose quotes what its cells print."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("19")
