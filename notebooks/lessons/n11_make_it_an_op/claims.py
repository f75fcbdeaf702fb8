"""11, Make it an op: no number in the prose that the notebook does not print."""

from __future__ import annotations

from lessons.shared.claim import quotes

quotes("11")
