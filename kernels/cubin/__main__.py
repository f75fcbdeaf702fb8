"""python -m kernels.cubin compile|embed|bench: kernels for programs without Python; each has --help."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from pathlib import Path

OPTIONS = ("num_warps", "num_stages")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__.partition(": ")[2])
    commands = parser.add_subparsers(dest="command", required=True)
    compiler = commands.add_parser("compile", help="source → <name>.sm_<arch>.cubin, without a GPU")
    compiler.add_argument("compiler", choices=("triton", "nvcc", "nvrtc"))
    compiler.add_argument("source", help="module:function of Triton's, or a file of CUDA C++")
    compiler.add_argument("--name", required=True, help="by which the program asks for it, and of the files")
    compiler.add_argument("--out", type=Path, default=Path(), help="folder (default: this one)")
    compiler.add_argument("--arch", type=int, nargs="+", required=True, help="90 for sm_90")
    compiler.add_argument("--argument", nargs="*", default=[],
                          help="name=type: *fp32, i32, …; *fp32:16, divisible by 16")
    compiler.add_argument("--constant", nargs="*", default=[], help="name=value, a constexpr's or an integer's")
    compiler.add_argument("--flag", action="append", default=[], help="one more for nvcc: --flag=-DN=4")
    compiler.add_argument("--depfile", type=Path, help="write here what the images are made of, for make and ninja")
    for option in OPTIONS:
        compiler.add_argument(f"--{option.replace('_', '-')}", type=int)
    bundler = commands.add_parser("embed", help="images → a header and an assembler file for a C++ program")
    bundler.add_argument("images", type=Path, nargs="+")
    bundler.add_argument("--name", required=True, help="of the files, and the namespace in them")
    bundler.add_argument("--out", type=Path, default=Path(), help="folder (default: this one)")
    bundler.add_argument("--array", action="store_true", help="the bytes as a C++ array: for other assemblers")
    timer = commands.add_parser("bench", help="on a GPU: what a launch costs")
    timer.add_argument("--save", action="store_true", help="record in traces/results/<gpu>/launches.json")
    args = parser.parse_args(arguments)
    try:
        return {"compile": _compile, "embed": _embed, "bench": _bench}[args.command](args)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _pairs(listed: list[str], what: str) -> dict[str, str]:
    pairs = dict(pair.partition("=")[::2] for pair in listed)
    if wrong := [pair for pair in listed if "=" not in pair]:
        raise RuntimeError(f"{what} {wrong[0]}: it has the form name=…")
    return pairs


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a word: a string without its quotes


def _compile(args: argparse.Namespace) -> int:
    if "triton" in sys.modules:
        raise RuntimeError("Triton was imported before it could be told that nothing is interpreted here")
    os.environ["TRITON_INTERPRET"] = "0"  # before it is imported: with the interpreter on, nothing compiles
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # its cache's keys leave out what a constexpr_function imports
    from . import compile

    constants = {name: _value(value) for name, value in _pairs(args.constant, "the constant").items()}
    constants |= {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    types = _pairs(args.argument, "the argument")
    if args.compiler != "triton" and not Path(args.source).is_file():
        raise RuntimeError(f"{args.source} is not a file")
    written: list[Path] = []
    files: set[Path] = set()
    for arch in args.arch:
        description = None
        if args.compiler == "triton":
            image, description = compile.by_triton(args.source, args.name, arch, types, constants, files)
        elif args.compiler == "nvcc":
            image = compile.by_nvcc(Path(args.source), arch, args.flag, files)
        else:
            image = compile.by_nvrtc(Path(args.source), arch, files)
        written.append(compile.write(args.out, args.name, arch, image, description))
        print(written[-1])
    if args.depfile:
        args.depfile.write_text(compile.depfile(written[0], files))
    return 0


def _embed(args: argparse.Namespace) -> int:
    from .embed import embed

    for path in embed(args.name, args.images, args.out, args.array):
        print(path)
    return 0


def _bench(args: argparse.Namespace) -> int:
    from ..runtime import CHECKOUT

    if CHECKOUT is None:
        raise RuntimeError(f"python -m {__package__} bench: measuring is in the repository alone")
    from . import bench

    return bench.main(args.save)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
