"""15: each number in the prose stands in an output of the notebook."""

from lessons.shared.claim import quotes

quotes("15")
