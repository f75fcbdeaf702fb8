"""python -m model.adapters: LoRA's layers, a DLRM step and many adapters, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("model.adapters.__main__")

from model import recorder
from model.adapters import record
from model.adapters.record import PROG


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    args = recorder.parser(PROG, record).parse_args(arguments)
    return recorder.run(args, PROG, record, record.SMALL, record.Sizes())
