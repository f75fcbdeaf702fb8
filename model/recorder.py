"""What the lessons' recorders share: their command, and what stands above the rows of a record.

A lesson's `record` module has NAME (of the record), PARTS, and `record(device, parts, sizes)`, which measures them and
returns {"rows": [{"match": "ok" | "FAILED: …", …}, …], …}.
"""

from __future__ import annotations

import argparse
from types import ModuleType

import torch

from data.cli import Parser, UserError, user_errors
from kernels import runtime
from kernels.measure import records
from model.profiling.recording import today

VERSIONS = ("GPU", "driver", "torch", "triton", "CUDA", "Python")


def head(name: str, prog: str) -> dict:
    """What is recorded, by which command, on which GPU, with which versions, and when."""
    versions = runtime.versions()
    return {"op": name, "command": f"{prog} --save", **{each: versions[each] for each in VERSIONS}, "date": today()}


def parser(prog: str, record: ModuleType, *, launch: bool = False) -> Parser:
    """The options of every recorder. launch: it can also start its kernels once, by `record.launch_once`, for ncu."""
    found = Parser(prog=prog, description=record.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if launch:
        found.add_argument("what", nargs="?", choices=("launch",), help="only start the kernels once, for ncu")
    found.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{record.NAME}.json")
    found.add_argument("--only", default=",".join(record.PARTS), metavar="PART,…", help="these parts, not saved")
    found.add_argument("--device", help="default: the GPU; cpu only tries it out, in small")
    return found


def run(args: argparse.Namespace, prog: str, record: ModuleType, small: object, full: object) -> int:
    """What `parser` was asked for: in full on a GPU, in small on a CPU. 1 if a row failed, 2 for a user's mistake."""
    with user_errors(prog):
        parts = args.only.split(",")
        if unknown := sorted(set(parts) - set(record.PARTS)):
            raise UserError(f"--only {','.join(unknown)}: expected some of {','.join(record.PARTS)}")
        if args.save and (set(parts) != set(record.PARTS) or args.device):
            raise UserError("--save: a part, or another device's times, is not saved over the record of all")
        if args.device is None and runtime.device().type != "cuda":
            raise UserError("this is recorded on an NVIDIA GPU, and there is none here (--device cpu tries it out)")
        device = torch.device(args.device or runtime.device())
        sizes = small if device.type == "cpu" else full
        if getattr(args, "what", None) == "launch":
            record.launch_once(device, sizes)
            return 0
        found = record.record(device, parts, sizes)
        if args.save:
            print(records.save(found))
        return int(any(row["match"].startswith("FAILED") for row in found["rows"]))
