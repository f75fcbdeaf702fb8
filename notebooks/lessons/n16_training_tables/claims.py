"""16, Training tables: the notebook quotes what it prints."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("16")
