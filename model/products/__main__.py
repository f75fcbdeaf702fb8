"""python -m model.products: the steps of a matrix product, timed beside cuBLAS and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("model.products.__main__")

from model import recorder
from model.products import record

PROG = "python -m model.products"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    args = recorder.parser(PROG, record, launch=True).parse_args(arguments)
    return recorder.run(args, PROG, record, record.SMALL, record.Sizes())
