"""What the notebooks' prose says in numbers, computed from what was recorded: CLAIMS, one for each sentence.

    claim("08", "eager takes {:.0f} µs, the one launch {:.1f}.", lambda: (us("eager"), us("triton")))

The sentence, with its numbers filled in, must stand in the notebook. A comparison is an assert in the function.
A module a notebook.
"""

from claims import embeddings, from_scratch, training_tables, whole_mlp  # noqa: F401
from claims.claim import CLAIMS, Claim

__all__ = ["CLAIMS", "Claim"]
