"""python -m model.pointwise: a pointwise Triton kernel, step by step, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("model.pointwise.__main__")

from model import recorder
from model.pointwise import record

PROG = "python -m model.pointwise"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    args = recorder.parser(PROG, record).parse_args(arguments)
    return recorder.run(args, PROG, record, record.SMALL, record.steps.SHAPES)
