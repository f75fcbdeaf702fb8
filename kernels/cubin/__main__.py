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
    given = parser.parse_args(arguments)
    try:
        return {"compile": _compile, "embed": _embed, "bench": _bench}[given.command](given)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _pairs(listed: list[str], what: str) -> dict[str, str]:
    pairs = dict(each.partition("=")[::2] for each in listed)
    if wrong := [each for each in listed if "=" not in each]:
        raise RuntimeError(f"{what} {wrong[0]}: it has the form name=…")
    return pairs


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a word: a string without its quotes


def _compile(given: argparse.Namespace) -> int:
    if "triton" in sys.modules:
        raise RuntimeError("Triton was imported before it could be told that nothing is interpreted here")
    os.environ["TRITON_INTERPRET"] = "0"  # before it is imported: with the interpreter on, nothing compiles
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # its cache's keys leave out what a constexpr_function imports
    from . import compile

    constants = {name: _value(value) for name, value in _pairs(given.constant, "the constant").items()}
    constants |= {name: value for name in OPTIONS if (value := getattr(given, name)) is not None}
    types = _pairs(given.argument, "the argument")
    if given.compiler != "triton" and not Path(given.source).is_file():
        raise RuntimeError(f"{given.source} is not a file")
    written: list[Path] = []
    files: set[Path] = set()
    for arch in given.arch:
        description = None
        if given.compiler == "triton":
            image, description = compile.by_triton(given.source, given.name, arch, types, constants, files)
        elif given.compiler == "nvcc":
            image = compile.by_nvcc(Path(given.source), arch, given.flag, files)
        else:
            image = compile.by_nvrtc(Path(given.source), arch, files)
        written.append(compile.write(given.out, given.name, arch, image, description))
        print(written[-1])
    if given.depfile:
        given.depfile.write_text(compile.depfile(written[0], files))
    return 0


def _embed(given: argparse.Namespace) -> int:
    from .embed import embed

    for path in embed(given.name, given.images, given.out, given.array):
        print(path)
    return 0


def _bench(given: argparse.Namespace) -> int:
    from ..runtime import CHECKOUT

    if CHECKOUT is None:
        raise RuntimeError(f"python -m {__package__} bench: measuring is in the repository alone")
    from . import bench

    return bench.main(given.save)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
