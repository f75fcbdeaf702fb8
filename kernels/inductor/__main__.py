"""Write what torch.compile generates for each op: python -m kernels.inductor --out FOLDER"""

import argparse
import sys
from pathlib import Path

from ..runtime import CHECKOUT, PACKAGE
from . import records


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.inductor", description=__doc__.partition(":")[0] + ".")
    if CHECKOUT is None:
        sys.exit(f"python -m {PACKAGE}.inductor: what it lowers, the ops' benchmarks, is in the repository alone")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for a file an op: FOLDER/<op>.txt")
    records.record(records.cases(), parser.parse_args(argv).out, "python -m kernels.inductor --out traces/generated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
