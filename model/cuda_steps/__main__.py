"""python -m model.cuda_steps: the lesson's CUDA kernels, counted (with nvcc alone) and timed (on a GPU)."""

if __name__ == "__main__":
    from data.cli import run

    run("model.cuda_steps.__main__")

from data.cli import user_errors
from model import recorder
from model.cuda_steps import counting, record

PROG = "python -m model.cuda_steps"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed, 2 for a mistake of the user's."""
    parser = recorder.parser(PROG, record, launch=True)
    parser.add_argument("--count", action="store_true", help="count instructions by nvcc, and save them: needs no GPU")
    args = parser.parse_args(arguments)
    if args.count:
        with user_errors(PROG):
            print("saved", counting.save(counting.count()))
        return 0
    return recorder.run(args, PROG, record, record.FEW, record.ROWS)
