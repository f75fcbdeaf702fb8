"""python -m model.gpu: what a GPU does with small kernels, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("model.gpu.__main__")

from model import recorder
from model.gpu import record

PROG = "python -m model.gpu"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    args = recorder.parser(PROG, record, launch=True).parse_args(arguments)
    return recorder.run(args, PROG, record, record.SMALL, record.Sizes())
