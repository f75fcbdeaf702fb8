"""A kernel's text as a program of its own, which may end as it likes: by g++ for the host, by nvcc for a GPU.

The text holds kernels and launch(pointers to float …, integers …); or, for the host alone, what load_inline is given,
with torch::Tensor forward(…) (inline.py). On the host each load and store is looked at (watch.cpp), so that a wrong one
is named with its thread, and the sectors of each warp's instruction are counted.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ... import runtime
from ...runtime import CACHE, KERNELS

HERE = Path(__file__).resolve().parent
BUILD = CACHE / "cuda_on_host"
SECONDS = 40  # of a run, on a machine that is busy: what a run does takes OF_PROCESSOR at most
OF_PROCESSOR = (3, 15)  # seconds of its time, on the host: of a run, of the search for a large grid's ends (watch.cpp)
COMPILE_SECONDS = 60
HEADERS = (HERE / "vectors.h", HERE / "watched.h", HERE / "torch_on_host.h")
OF_WATCH = (HERE / "vectors.h", HERE / "buffers.h", HERE / "ends.h")
# No struct is taken apart: a float4 is one access, as in the GPU's code.
WATCHED = (
    "-std=c++17", "-O1", "-fno-tree-vectorize", "-fno-tree-sra", "-fsanitize=thread,bounds-strict", "-w",
    "-fmax-errors=2",
)  # fmt: skip
# What a local variable holds that was given no value: large numbers below 0, so that the old contents of a stack, often
# 0, make no sum right. g++ has it from 12 on, clang too.
UNSET = "-ftrivial-auto-var-init={}"
LAUNCH = re.compile(r"((?:[A-Za-z_]\w*::)*[A-Za-z_]\w*\s*(?:<(?:[^<>;]|<[^<>;]*>)*>)?)\s*<<<(.*?)>>>\s*\(", re.S)
SIGNATURE = re.compile(r"\bvoid\s+launch\s*\(([^)]*)\)\s*\{")
FORWARD = re.compile(r"\b(?:torch|at)::Tensor\s+forward\s*\(([^)]*)\)\s*\{")
# PyTorch's and CUDA's headers; on the host torch_on_host.h and watched.h are in their place.
INCLUDES = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|cuda|math_const|device_)[\w/.]*[>\"]", re.M)
# Where g++ puts the __shared__ arrays of templates, whatever their section (watched.h) says.
OF_TEMPLATES = re.compile(r"^\s*\.section\s+\.bss\._ZZ.*,comdat$", re.M)


class DoesNotCompile(AssertionError):
    """What the compiler says, without paths."""


@dataclass
class Sparse:
    """A buffer larger than the memory: of so many float32 only these are there, {first: values}."""

    numbers: int
    segments: dict[int, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """status: ok, or what went wrong, and text: where. buffers: what they hold now, segment by segment. counts: of each
    buffer the reads of warps, their sectors, the writes, theirs. threads: how many wrote, of so many launched. shared:
    accesses of shared memory. ends: where a grid was too large to run whole: how many elements of either end were
    sought; into how many parts the grid was cut, blocks or threads, how many were sampled all over it, what they wrote
    together and at most; whether the search was cut short (exhausted), in a thread that had gone on to lower places
    (falls); what two threads wrote (twice: the element, and their names). us, copy_us: on a GPU."""

    status: str
    text: str = ""
    buffers: list[list[np.ndarray]] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)
    threads: int = 0
    launched: int = 0
    shared: int = 0
    ends: dict = field(default_factory=dict)
    us: float = 0.0
    copy_us: float = 0.0


def on_host(source: str) -> str:
    """The text for g++: each kernel<<<grid, block>>>(…) as a call of launch_on_host."""
    extension = FORWARD.search(source)

    def call(match: re.Match) -> str:
        if len(configuration := cut_at_commas(match[2])) < 2:
            raise DoesNotCompile("<<<grid, block>>> takes two arguments")
        grid, block, *more = configuration
        if len(more) > 2:
            raise DoesNotCompile("<<<grid, block, shared bytes, stream>>> takes no more arguments")
        if more and re.fullmatch(r"[1-9]\d*", more[0]):
            raise DoesNotCompile("<<<grid, block, shared bytes>>>: here they are 0, an array has its own __shared__")
        grid = f"dim3({grid})" if more[:1] in ([], ["0"]) else f"watch::without_shared({more[0]}, dim3({grid}))"
        if extension:
            grid = f"torch_on_host::on({', '.join([*more[1:], grid])})"
        return f"launch_on_host({match[1]}, {grid}, dim3({block}), "

    return re.sub(r", \)", ")", LAUNCH.sub(call, INCLUDES.sub("", source)))


def cut_at_commas(text: str) -> list[str]:
    """Cut at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _calling(source: str, gpu: bool) -> str:
    """call_launch(), which gives launch() its arguments by their types."""
    if extension := FORWARD.search(source):
        return _calling_forward(extension[1])
    signature = SIGNATURE.search(source)
    if not signature:
        raise DoesNotCompile("void launch(…) is not there")
    casts, pointers, integers = [], 0, 0
    for parameter in signature[1].split(","):
        kind = re.sub(r"\w+\s*$", "", parameter.strip()).strip()
        if "*" in kind:
            casts.append(f"({kind})buffers[{pointers}]")
            pointers += 1
        else:
            casts.append(f"({kind})integers[{integers}]")
            integers += 1
    linkage = "" if gpu else 'extern "C" '
    return f"\n{linkage}void call_launch(void** buffers, const long long* integers) {{ launch({', '.join(casts)}); }}\n"


def _calling_forward(parameters: str) -> str:
    kinds = [re.sub(r"\w+\s*$", "", parameter.strip()) for parameter in parameters.split(",") if parameter.strip()]
    names = {"Tensor": "tensor", "double": "number", "float": "number"}
    takes = [next((name for word, name in names.items() if word in kind), "integer") for kind in kinds]
    declarations = "".join(f"    auto a{at} = arguments.{kind}();\n" for at, kind in enumerate(takes))
    call = f"forward({', '.join(f'a{at}' for at in range(len(takes)))})"
    return f"""
extern "C" void call_launch(void**, const long long* integers) {{
    torch_on_host::Arguments arguments(integers);
{declarations}    torch_on_host::give({call});
}}
"""


def build(source: str, gpu: bool = False, unset: str = "pattern") -> Path:
    """The program, from the cache or built. DoesNotCompile: with what the compiler says first.

    unset: "pattern" or "zero", what local variables hold on the host that were given no value.
    """
    text = source
    if not gpu:
        header = "torch_on_host.h" if FORWARD.search(source) else "watched.h"
        text = f'#include "{header}"\n#line 1 "kernel"\n' + on_host(source)
    return _build(text + _calling(source, gpu), gpu, () if gpu else _filled(unset))


@functools.lru_cache(maxsize=64)
def _build(text: str, gpu: bool, filled: tuple[str, ...]) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    main = HERE / ("on_gpu.cu" if gpu else "watch.cpp")
    shared = [main, *HEADERS, *OF_WATCH, *sorted(HERE.glob("cuda_on_host*.h"))]
    made_of = "".join([text, *WATCHED, *filled, *(path.read_text() for path in shared)])
    program = BUILD / f"{'gpu' if gpu else 'host'}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    if program.exists():
        return program
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        file = Path(folder) / ("kernel.cu" if gpu else "kernel.cpp")
        file.write_text(text)
        built = Path(folder) / "program"
        if gpu:
            _compile([str(runtime.nvcc()), "-O3", "-std=c++17", "-arch=native", file, main, "-o", built])
        else:
            assembly = file.with_suffix(".s")
            _compile([compiler(), *WATCHED, *filled, f"-I{_headers()}", "-S", file, "-o", assembly])
            assembly.write_text(OF_TEMPLATES.sub(r'\t.section\tshared_memory,"aw"', assembly.read_text()))
            _compile([compiler(), "-s", assembly, _watcher(), "-o", built])
        built.replace(program)
    return program


@functools.cache
def _filled(unset: str) -> tuple[str, ...]:
    """The option, where the compiler knows it."""
    option = UNSET.format(unset)
    command = [compiler(), option, "-fsyntax-only", "-x", "c++", os.devnull]
    return () if subprocess.run(command, capture_output=True, check=False).returncode else (option,)


def reads_unset(source: str, buffers: Sequence[np.ndarray], integers: Sequence[int], got: Outcome, **how: bool) -> bool:
    """Whether this outcome of a run on the host depends on what local variables hold that were given no value."""
    other = run(build(source, unset="zero"), buffers, integers, **how)
    before, after = ([part.tobytes() for buffer in outcome.buffers for part in buffer] for outcome in (got, other))
    return (got.status, got.text, before) != (other.status, other.text, after)


def _headers() -> Path:
    """A folder with HEADERS, compiled once: reading the C library's for each text takes most of its compilation."""
    key = hashlib.sha256("".join([compiler(), *WATCHED, *(path.read_text() for path in HEADERS)]).encode()).hexdigest()
    folder = BUILD / f"headers-{key[:16]}"
    if not folder.exists():
        temp = Path(tempfile.mkdtemp(dir=BUILD))
        for path in HEADERS:
            shutil.copy(path, temp)
        for path in HEADERS:
            _compile([compiler(), *WATCHED, "-x", "c++-header", temp / path.name, "-o", temp / f"{path.name}.gch"])
        try:
            temp.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(temp)
    return folder


def _watcher() -> Path:
    """watch.cpp compiled, once."""
    sources = [HERE / "watch.cpp", *OF_WATCH, *sorted(HERE.glob("cuda_on_host*.h"))]
    key = hashlib.sha256("".join(path.read_text() for path in sources).encode()).hexdigest()[:16]
    object_file = BUILD / f"watch-{key}.o"
    if not object_file.exists():
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            temp = Path(folder) / "watch.o"
            _compile([compiler(), "-std=c++20", "-O1", f"-I{KERNELS}", "-w", "-c", sources[0], "-o", temp])
            temp.replace(object_file)
    return object_file


def compiler() -> str:
    return runtime.compiler_program()


def _compile(command: Sequence) -> None:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DoesNotCompile(f"the compiler has not ended after {COMPILE_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.search(r"error|undefined", line)]
        first = re.sub(r"\S*/", "", (errors or done.stderr.splitlines() or ["?"])[0])
        raise DoesNotCompile(f"the compiler says: {first.strip()[:300]}")


def run(
    program: Path, buffers: Sequence[np.ndarray | Sparse], integers: Sequence[int], *, backwards: bool = False,
    times: bool = False,
) -> Outcome:
    """The program's launch() with copies of these buffers, of float32."""
    inputs, asked = request_of(buffers, integers, backwards)
    with tempfile.TemporaryDirectory() as folder:
        request, response = Path(folder) / "request", Path(folder) / "response"
        request.write_bytes(asked)
        environment = {**os.environ, **({"TIMES": "1"} if times else {})}
        try:
            done = subprocess.run([program, request, response], capture_output=True, text=True, timeout=SECONDS,
                                  env=environment, check=False)
        except subprocess.TimeoutExpired:
            return Outcome("endless", f"{SECONDS} s")
        if done.returncode == -signal.SIGXCPU:
            sparse = any(isinstance(buffer, Sparse) for buffer in buffers)
            return Outcome("endless", f"{OF_PROCESSOR[sparse]} s of the processor's time")
        if not response.exists():
            return Outcome("ended", f"{done.returncode}: {done.stderr[-300:]}")
        line, _, rest = response.read_bytes().partition(b"\n")
    facts = json.loads(line)
    if facts["status"] == "barrier":
        facts["text"] = done.stderr.strip().removeprefix("cuda_on_host: ")
    outputs, at = [], 0
    if rest:
        for buffer in inputs:
            outputs.append([])
            for part in buffer.segments.values():
                outputs[-1].append(np.frombuffer(rest, np.float32, part.size, at).copy())
                at += part.nbytes
    return Outcome(buffers=outputs, **facts)


def request_of(
    buffers: Sequence[np.ndarray | Sparse], integers: Sequence[int], backwards: bool = False
) -> tuple[list[Sparse], bytes]:
    """(the buffers, what a program is given): see watch.cpp."""
    inputs = [b if isinstance(b, Sparse) else Sparse(b.size, {0: np.ascontiguousarray(b)}) for b in buffers]
    head: list[int] = [backwards, any(isinstance(b, Sparse) for b in buffers), len(inputs)]
    for buffer in inputs:
        head += [4 * buffer.numbers, len(buffer.segments)]
        head += [n for first, values in buffer.segments.items() for n in (4 * first, values.nbytes)]
    head += [len(integers), *integers]
    values = b"".join(part.tobytes() for buffer in inputs for part in buffer.segments.values())
    return inputs, np.array(head, dtype=np.int64).tobytes() + values
