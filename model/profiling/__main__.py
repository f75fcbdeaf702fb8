"""python -m model.profiling: record the lecture's steps, and read any trace of torch.profiler as tables."""

if __name__ == "__main__":
    from data.cli import run

    run("model.profiling.__main__")

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from data.cli import Parser, UserError, user_errors
from data.synthetic import FULL
from kernels import inductor, runtime
from model.profiling import traced_steps
from model.profiling.facts import compare, step_facts, summarize
from model.profiling.recorded_cases import generated_cases
from model.profiling.tables import TRACES, as_text, facts_line, write_table
from model.profiling.trace import read

PROG = "python -m model.profiling"


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit status: 0, 1 if a step failed, 2 for a mistake of the user's."""
    parser = _parser()
    args = parser.parse_args(arguments)
    with user_errors(f"{PROG} {args.command}: error"):
        return args.run(args)


def _parser() -> Parser:
    parser = Parser(prog=PROG, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run, text: str, description: str = "") -> Parser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {description}")
        command.set_defaults(run=run)
        return command

    command = add("summarize", _summarize, "what a step of each trace spends its time on, kernel by kernel",
                  "On the CPU: operator by operator. count and us are those of one step.")
    command.add_argument("traces", nargs="+", type=Path, metavar="DIR", help="a folder with a trace, or its file")
    _add_names(command)
    command = add("compare", _compare, "what became of each kernel from trace A to trace B, the largest change first")
    command.add_argument("traces", nargs=2, type=Path, metavar="DIR", help="two folders or files: A, B")
    _add_names(command)

    command = add("story", _story, "on a GPU: record the lecture's steps in traces/, each timed in five processes")
    _add_choice(command)
    command.add_argument("--steps", type=_positive, metavar="N", help="recorded steps of each (default: 3)")
    command.add_argument("--batch-size", type=_positive, metavar="N", help="rows a step (default: 2048)")
    command.add_argument("--largest-table", type=_positive, metavar="IDS", help="smaller tables, to try it out")
    command = add("times", _times, "on a GPU: time recorded steps again; their traces stay as they are")
    _add_choice(command)

    command = add("table", _table, "bring the table in traces/README.md up to date")
    _add_out(command)
    command = add("generated", _generated, "on a GPU: what torch.compile generates, in traces/generated/")
    _add_out(command)
    return parser


def _add_names(command: Parser) -> None:
    command.add_argument("--names", choices=("fit", "whole"), help="cut names to fit the terminal, or show them whole "
                         "(default: fit in a terminal, whole elsewhere)")


def _add_out(command: Parser) -> None:
    command.add_argument("--out", type=Path, default=TRACES, metavar="DIR", help="their folder (default: traces/)")


def _add_choice(command: Parser) -> None:
    _add_out(command)
    command.add_argument("--only", metavar="01,03", help="these steps only")
    command.add_argument("--repeats", type=_positive, metavar="N", help=f"processes (default: {traced_steps.REPEATS})")
    command.add_argument("--device", help="default: the GPU; cpu only tries it out")


def _positive(text: str) -> int:
    value = int(text) if text.lstrip("+-").isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text}")
    return value


def _summarize(args: argparse.Namespace) -> int:
    for number, path in enumerate(args.traces):
        trace = read(path)
        print("\n" * (number > 0) + facts_line(trace.name, step_facts(trace)))
        print(as_text(summarize(trace), _width(args)))
    return 0


def _compare(args: argparse.Namespace) -> int:
    a, b = map(read, args.traces)
    for letter, trace in (("a", a), ("b", b)):
        print(facts_line(f"{letter}: {trace.name}", step_facts(trace)))
    print(as_text(compare(a, b), _width(args)))
    return 0


def _width(args: argparse.Namespace) -> int | None:
    fit = sys.stdout.isatty() if args.names is None else args.names == "fit"
    return shutil.get_terminal_size().columns if fit else None


def _chosen(args: argparse.Namespace) -> list[traced_steps.TracedStep]:
    steps = {step.number: step for step in traced_steps.TRACED_STEPS}
    numbers = args.only.split(",") if args.only else list(steps)
    if unknown := sorted(set(numbers) - set(steps)):
        raise UserError(f"--only {','.join(unknown)}: expected some of {','.join(steps)}")
    _need_a_gpu(args.device)
    return [steps[number] for number in numbers]


def _need_a_gpu(device: str | None = None) -> None:
    if device is None and runtime.device().type != "cuda":
        raise UserError("this is recorded on an NVIDIA GPU, and there is none here (story --device cpu tries it out)")


def _story(args: argparse.Namespace) -> int:
    names = ("steps", "batch_size", "largest_table", "repeats", "device")
    options = "".join(f" --{name.replace('_', '-')} {value}" for name in names if (value := getattr(args, name)))
    steps = _chosen(args)
    if args.largest_table:
        if args.largest_table > FULL:
            raise UserError(f"--largest-table: expected at most {FULL}, got {args.largest_table}")
        steps = [replace(step, largest_table=args.largest_table) for step in steps]
    if args.batch_size:
        steps = [replace(step, batch_size=args.batch_size) for step in steps]
    repeats = args.repeats or traced_steps.REPEATS
    return int(traced_steps.record_steps(steps, args.out, args.device, args.steps or 3, repeats, options) > 0)


def _times(args: argparse.Namespace) -> int:
    return int(traced_steps.time_steps(_chosen(args), args.out, args.device, args.repeats or traced_steps.REPEATS) > 0)


def _table(args: argparse.Namespace) -> int:
    write_table(args.out)
    return 0


def _generated(args: argparse.Namespace) -> int:
    _need_a_gpu()
    inductor.record(inductor.cases() | generated_cases(), args.out / "generated", f"{PROG} generated")
    return 0
