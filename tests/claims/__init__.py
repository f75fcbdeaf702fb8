"""What the notebooks' prose says in numbers, computed from what was recorded: CLAIMS, one for each sentence.

    claim("15", "eager takes {:.0f} µs, the one launch {:.1f}.", lambda: (us("eager"), us("triton")))

The sentence, with its numbers filled in, must stand in the notebook. A comparison is an assert in the function.
A module a notebook.
"""

import importlib
import pkgutil

from claims.claim import CLAIMS, Claim

for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"claims.{_found.name}")

__all__ = ["CLAIMS", "Claim"]
