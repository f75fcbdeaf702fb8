"""Make a single file of what a run under torchrun wrote: for prediction, export, serving, and --init-from.

    python -m model.single_file build/checkpoints/NAME --out FILE [--which last]

NAME holds checkpoints in folders, of which the files best and last name two; one of those folders will do, too. FILE
has the model's parameters, not the optimizer's state: training goes on from the folders alone, on any number of ranks.
It takes memory for all parameters.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.single_file")

import argparse
from pathlib import Path

from data.cli import Parser, UserError
from model.checkpoints import is_of_ranks
from model.sharding.checkpoints import RUN, named, write_single


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m model.single_file", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, metavar="FOLDER", help="of a run, or one checkpoint of it")
    parser.add_argument("--which", choices=("best", "last"), help="of a run's (default: best)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="what is there is replaced")
    options = parser.parse_args(arguments)
    folder, is_one = options.checkpoint, (options.checkpoint / RUN).exists()
    if folder.is_file():
        raise UserError(f"{folder}: expected a run's folder, or a checkpoint's, got a file; name {folder.parent}")
    if is_one and options.which:
        raise UserError(f"--which {options.which}: {folder} is one checkpoint; name the run's folder, {folder.parent}")
    if is_of_ranks(options.out) or (options.out.parent / RUN).exists():
        raise UserError(f"--out {options.out}: is a part of the checkpoints themselves; name another file")
    write_single(folder if is_one else named(folder / (options.which or "best")), options.out)
