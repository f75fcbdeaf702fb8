"""The command line of model.train under torchrun: its own options, and the rank that they make of this process."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout

from torch.distributed import is_torchelastic_launched

from data.cli import Parser, is_first
from model.config import Preset
from model.sharding.pieces import Sharding, Wire
from model.sharding.ranks import Ranks, check_device, leave_to_speak, of_rank

TIMEOUT = 600  # seconds that a rank waits for another


@contextmanager
def said_once() -> Iterator[None]:
    """Within it the first rank alone prints: all have the same arguments, and the same mistake."""
    with open(os.devnull, "w") as nowhere:
        redirected = redirect_stdout(nowhere), redirect_stderr(nowhere)
        out, err = (nullcontext() if is_first() else one for one in redirected)
        with out, err:
            try:
                yield
            except SystemExit as end:
                leave_to_speak(is_first() or not end.code)  # --help is no mistake
                raise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Sharding", "Under torchrun. A run keeps them, on however many ranks it goes on.")
    group.add_argument("--piece-rows", type=int, metavar="N", default=0, help="cut tables into runs of so many rows")
    group.add_argument("--columns", type=int, metavar="N", default=1, help="cut tables into so many blocks of columns")
    group.add_argument(
        "--exchange", type=Wire, choices=list(Wire), default=Wire.FP32, metavar="NAME",
        help="what vectors travel in (fp32; bf16: rounded to 8 bits)",
    )
    group.add_argument(
        "--data-shards", type=int, metavar="N", default=0,
        help="runs of rows that are read side by side, a divisor of the batch size (default: one a rank, or fewer)",
    )
    group.add_argument(
        "--timeout", type=float, metavar="SECONDS", help=f"how long a rank waits for another (default: {TIMEOUT})"
    )


def sharding_of(args: argparse.Namespace, preset: Preset, parser: Parser) -> Sharding:
    """What parsed options say of it; parser.error for values that cannot be, also with the preset's or for a rank, and
    for any without torchrun."""
    if args.timeout is not None and not args.timeout > 0:
        parser.error(f"--timeout: expected a positive number of seconds, got {args.timeout}")
    try:
        sharding = Sharding(args.piece_rows, args.columns, args.exchange, args.data_shards)
        if is_torchelastic_launched():
            sharding.check(preset)
            check_device(args.device)
    except ValueError as error:
        parser.error(str(error))
    given = sharding.given() + ["--timeout"] * (args.timeout is not None)
    if given and not is_torchelastic_launched():
        parser.error(f"{given[0]}: only under torchrun")
    return sharding


def joined(args: argparse.Namespace) -> Ranks | None:
    """This process among those that torchrun started, if it did."""
    return Ranks(of_rank(args.device), args.timeout or TIMEOUT) if is_torchelastic_launched() else None
