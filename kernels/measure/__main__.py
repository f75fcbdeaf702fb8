"""python -m kernels.measure bench|status|gpu: what the ops cost, what was recorded of them, and all of it on a GPU."""

import importlib
import sys

from ..runtime import CHECKOUT, PACKAGE

COMMANDS = {"bench": "bench", "status": "status", "gpu": "run_all"}

if __name__ == "__main__":
    if CHECKOUT is None:
        sys.exit(f"python -m {PACKAGE}.measure: measuring, its records and the tests are in the repository alone")
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        sys.exit(importlib.import_module(f"{__package__}.{COMMANDS[sys.argv[1]]}").main(sys.argv[2:]))
    print(f"usage: python -m kernels.measure {'|'.join(COMMANDS)} [options]; each has --help", file=sys.stderr)
    sys.exit(2)
