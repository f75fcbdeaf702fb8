"""python -m kernels.measure bench|status|gpu: what the ops cost, what was recorded of them, and all of it on a GPU."""

import importlib
import sys

COMMANDS = {"bench": "bench", "status": "status", "gpu": "run_all"}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        sys.exit(importlib.import_module(f"kernels.measure.{COMMANDS[sys.argv[1]]}").main(sys.argv[2:]))
    print(f"usage: python -m kernels.measure {'|'.join(COMMANDS)} [options]; each has --help", file=sys.stderr)
    sys.exit(2)
