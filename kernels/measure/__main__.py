"""python -m kernels.measure bench|status: what the ops cost, and what was recorded of them."""

import importlib
import sys

from ..runtime import CHECKOUT, PACKAGE

COMMANDS = ("bench", "status")

if __name__ == "__main__":
    if CHECKOUT is None:
        sys.exit(f"python -m {PACKAGE}.measure: measuring, its records and the tests are in the repository alone")
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        sys.exit(importlib.import_module(f"{__package__}.{sys.argv[1]}").main(sys.argv[2:]))
    asked = sys.argv[1:2] in (["-h"], ["--help"])
    usage = f"usage: python -m kernels.measure {'|'.join(COMMANDS)} [options]; each has --help"
    print(usage, file=sys.stdout if asked else sys.stderr)
    sys.exit(0 if asked else 2)
