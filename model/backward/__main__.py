"""python -m model.backward: a pointwise kernel's backward, step by step, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("model.backward.__main__")

from model import recorder
from model.backward import record

PROG = "python -m model.backward"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    args = recorder.parser(PROG, record).parse_args(arguments)
    return recorder.run(args, PROG, record, record.SMALL, record.Sizes())
