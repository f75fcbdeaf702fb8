import sys

from ..runtime import CHECKOUT, PACKAGE
from . import GENERATED, generated

if CHECKOUT is None:
    sys.exit(f"python -m {PACKAGE}.library: ops.cpp is written anew in the repository alone")

GENERATED.write_text(generated())
print(GENERATED)
