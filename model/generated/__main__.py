"""python -m model.generated: the kernels that torch.compile generates for one function, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("model.generated.__main__")

import argparse

import torch

from data.cli import Parser, UserError, user_errors
from kernels import runtime
from model.generated import record

PROG = "python -m model.generated"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    parser = Parser(prog=PROG, description=record.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{record.NAME}.json")
    parser.add_argument("--device", help="default: the GPU; cpu only tries it out, in small")
    args = parser.parse_args(arguments)
    with user_errors(PROG):
        if args.save and args.device:
            raise UserError("--save: another device's times are not saved over the record")
        if args.device is None and runtime.device().type != "cuda":
            raise UserError("this is recorded on an NVIDIA GPU, and there is none here (--device cpu tries it out)")
        device = torch.device(args.device or runtime.device())
        found = record.record(device, record.SMALL if device.type == "cpu" else record.ROWS)
        if args.save:
            print(record.save(found))
        return int(any(row["match"].startswith("FAILED") for row in found["rows"]))
