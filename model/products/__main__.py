"""python -m model.products: the steps of a matrix product, timed beside cuBLAS and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("model.products.__main__")

import argparse

import torch

from data.cli import Parser, UserError, user_errors
from kernels import runtime
from model.products import record

PROG = "python -m model.products"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    parser = Parser(prog=PROG, description=record.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("launch",), help="only launch some steps once, for ncu")
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{record.NAME}.json")
    parser.add_argument("--only", default=",".join(record.PARTS), metavar="PART,…", help="these parts, not saved")
    parser.add_argument("--device", help="default: the GPU; cpu only tries it out, in small")
    args = parser.parse_args(arguments)
    with user_errors(PROG):
        parts = args.only.split(",")
        if unknown := sorted(set(parts) - set(record.PARTS)):
            raise UserError(f"--only {','.join(unknown)}: expected some of {','.join(record.PARTS)}")
        if args.save and (set(parts) != set(record.PARTS) or args.device):
            raise UserError("--save: a part, or another device's times, is not saved over the record of all")
        if args.device is None and runtime.device().type != "cuda":
            raise UserError("this is recorded on an NVIDIA GPU, and there is none here (--device cpu tries it out)")
        device = torch.device(args.device or runtime.device())
        sizes = record.SMALL if device.type == "cpu" else record.Sizes()
        if args.what == "launch":
            record.launch_once(device, sizes)
            return 0
        found = record.record(device, parts, sizes)
        if args.save:
            print(record.save(found))
        return int(any(row["match"].startswith("FAILED") for row in found["rows"]))
