"""The puzzles of 24_a_kernel_without_triton.ipynb: what each must give, and attempt(), which judges an answer.

    parameters    the bytes of a cubin's .nv.info.<kernel> → the bytes of each parameter, in order
    specialised   an argument of a call → its type, as Triton specialises it
    launch        C++: which of two kernels, with which grid and arguments
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from kernels import runtime
from kernels.runtime import KERNELS
from lessons.shared.commands import ROOT
from lessons.shared.puzzle import Judge, Own
from lessons.shared.puzzle.reader import ask

FOLDER = ROOT / "build" / "lesson24"  # of the notebook's files

# ---------------------------------------------------------------------------------------------------------- parameters


def parameters(info: bytes) -> list[int]:
    """As kernels/cubin/image.h reads them."""
    sizes, at = {}, 0
    while at < len(info):
        form, number, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:
            continue
        if number == 0x17:
            (place,) = struct.unpack_from("<H", info, at + 4)
            (last,) = struct.unpack_from("<I", info, at + value - 4)
            sizes[place] = last >> 18
        at += value
    return [sizes[place] for place in sorted(sizes)]


def _short(number: int, value: int, form: int = 3) -> bytes:
    return struct.pack("<BBH", form, number, value)


def _long(number: int, content: bytes) -> bytes:
    return struct.pack("<BBH", 4, number, len(content)) + content


def _parameter(place: int, size: int, offset: int = 0) -> bytes:
    # The lower 18 bits have another meaning: in real cubins some of them are set.
    return _long(0x17, struct.pack("<IHHI", 0, place, offset, size << 18 | 0x1F000))


def _parameters(*sizes: int) -> list[bytes]:
    """Parameters of all these sizes in order, each behind the one before, where its size lets it begin."""
    records, offset = [], 0
    for place, size in enumerate(sizes):
        offset += -offset % min(size & -size, 8)
        records.append(_parameter(place, size, offset))
        offset += size
    return records


_INFO = (
    ("one parameter", [_parameter(0, 8)], [8], "its size is the last four bytes, shifted right by 18."),
    ("no parameter, in a second call", [_short(0x1B, 0xFF)], [],
     "a kernel may have none, and what one call has read must not reach the next."),
    ("in order", [_parameter(0, 8), _parameter(1, 4, 8)], [8, 4],
     "a record has its own parameter's place and size; the next begins behind its content."),
    ("the last one first", [_parameter(2, 2, 12), _parameter(1, 4, 8), _parameter(0, 8)], [8, 4, 2],
     "a record says its parameter's place, and the records come in any order."),
    ("other records before and between",
     [_short(0x1B, 0xFF), _long(0x19, struct.pack("<HH", 8, 12)), _parameter(1, 4, 8), _short(0x50, 0),
      _parameter(0, 8), _long(0x4C, _parameter(1, 5)[4:])],
     [8, 4], "only in format 4 the value is a length; a record of another number is passed over."),
    ("formats 1 and 2", [_short(0x2A, 0, 1), _short(0x1D, 8, 2), _parameter(0, 8), _short(0x2B, 5, 1)], [8],
     "only in format 4 the value is a length."),
    ("a record that holds what looks like a parameter",
     [_long(0x4A, _parameter(5, 16) + _parameter(0, 2)[:4]), _parameter(0, 4)], [4],
     "go from record to record: the bytes inside one may be anything."),
    ("a struct of 40 bytes, and eleven numbers", _parameters(40, *[4] * 9, 8, 4)[::-1], [40, *[4] * 9, 8, 4],
     "the places are numbers: sort them as such."),
    ("a struct of 10,000 bytes", _parameters(10_000), [10_000], "the last four bytes are one unsigned number."),
    ("a record of 40,000 bytes", [_long(0x4A, _parameter(5, 16) * 2_500), _parameter(0, 4)], [4],
     "bytes 2 and 3 of a record are one unsigned number."),
    ("300 parameters", _parameters(*[4] * 299, 8)[::-1], [*[4] * 299, 8], "bytes 4 and 5 are one number, the place."),
    ("a value that no other format uses", [_short(0x03, 0x0417), _parameter(0, 1)], [1],
     "a record of another format has 4 bytes and no content."),
)  # fmt: skip


def _drawn_info() -> Iterator[tuple[str, list[bytes], list[int], str]]:
    """Lists that no table of answers has."""
    for _ in range(20):
        sizes = [(1, 2, 4, 8, 12, 64, 2000)[k] for k in torch.randint(7, (int(torch.randint(1, 9, ())),)).tolist()]
        others = [_short(0x1B, 0xFF), _long(0x4A, bytes(torch.randint(256, (12,)).tolist()))]
        records = [*_parameters(*sizes), *others]
        shuffled = [records[k] for k in torch.randperm(len(records)).tolist()]
        yield f"{len(sizes)} drawn parameters", shuffled, sizes, "look at every record, and sort by the places."


_INT = "/ gives a float, // and >> an int; and an int it stays."


def _check_parameters(answer: Callable) -> str:
    for name, records, want, hint in (*_INFO, *_drawn_info()):
        told = f"parameters, case {name}: "
        got = ask(told, answer, (b"".join(records),), hint)
        assert isinstance(got, list | tuple), f"{told}must return a list; got {type(got).__name__}"
        other = next((size for size in got if not isinstance(size, Integral)), None)
        assert other is None, f"{told}a size is an int; got {other!r}\nHint: {_INT}"
        assert [*got] == want, f"{told}{_difference([*got], want)}\nHint: {hint}"
    return f"{len(_INFO)} cases passed on paper"


def _difference(got: list, want: list) -> str:
    """Both; of many their lengths, or the first that is another."""
    if len(want) <= 16:
        return f"expected {want}, got {got[:20]}"
    if len(got) != len(want):
        return f"expected {len(want)} parameters, got {len(got)}"
    at = next(k for k, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
    return f"parameter {at}: expected {want[at]}, got {got[at]}"


# --------------------------------------------------------------------------------------------------------- specialised


def specialised(argument: Tensor | float) -> str:
    """As Triton 3.6 and 3.7 do it; a test compares."""
    if isinstance(argument, Tensor):
        return "*fp32:16" if argument.data_ptr() % 16 == 0 else "*fp32"
    if isinstance(argument, float):
        return "fp32"
    if argument == 1:
        return "constexpr"
    type_ = "i32" if -(2**31) <= argument < 2**31 else "i64"
    return f"{type_}:16" if argument % 16 == 0 else type_


def _tensors() -> dict[str, Tensor]:
    whole = torch.zeros(128)
    first = -(whole.data_ptr() // 4) % 4  # to an address that 16 divides
    # Their own memory begins 4 bytes behind such an address.
    begun = torch.frombuffer(memoryview(whole.numpy()).cast("B"), dtype=torch.float32, offset=4 * first + 4)
    return {
        "a tensor at a multiple of 16": whole[first : first + 64],
        "a tensor from its second number on": whole[first + 1 : first + 65],
        "a tensor from its third number on": whole[first + 2 : first + 66],
        "a tensor from its fifth number on": whole[first + 4 : first + 68],
        "a tensor whose memory begins 4 bytes behind a multiple of 16": begun[:64],
        "its view from the fourth number on": begun[3:67],
    }


_ADDRESS = "a pointer is a number, too: Tensor.data_ptr(). Does 16 divide it?"
_RANGE = "i32 holds -(2**31) to 2**31 - 1."
_NUMBERS = (
    (17, "16 does not divide it: no ending."),
    (32, "16 divides it: the type ends in :16."),
    (1, "an integer of 1 becomes a constant: constexpr."),
    (0, "16 divides 0."),
    (-1, "only 1 itself is a constant."),
    (-48, "16 divides it."),
    (24, "8 divides it, and 16 does not."),
    (20, "4 divides it, and 16 does not."),
    (80, "16 divides it."),
    (2**31 - 1, _RANGE),
    (2**31, "i32 ends at 2**31 - 1; and 16 divides 2**31."),
    (2**31 + 17, _RANGE),
    (2**32 + 1, "only 1 itself is a constant, not what has a 1 in its lower half."),
    (-(2**31), "i32 begins at -(2**31); and 16 divides it."),
    (-(2**31) - 1, _RANGE),
    (1.0, "a float is never specialised, not even 1.0: it is fp32."),
    (16.0, "a float is never specialised: it is fp32."),
)


def _drawn() -> list[int]:
    """Integers of all sizes, which no table of answers has."""
    numbers = torch.randint(-(2**62), 2**62, (100,)) >> torch.randint(62, (100,))
    return [number - number % 16 * (k % 2) for k, number in enumerate(numbers.tolist())]


def _of_number(number: int) -> str:
    long = "" if -(2**31) <= number < 2**31 else " It is an i64: compute with ints, for a float keeps 53 bits."
    return f"16 {'does not divide' if number % 16 else 'divides'} it.{long}"


def _check_specialised(answer: Callable) -> str:
    tensors = _tensors()
    cases = [(name, tensor, _ADDRESS) for name, tensor in tensors.items()]
    cases += [(f"{number}", number, hint) for number, hint in _NUMBERS]
    for name, argument, hint in [*cases, *((f"{number}", number, "") for number in _drawn())]:
        told, want = f"specialised, case {name}: ", specialised(argument)
        hint = hint or _of_number(argument)
        got = ask(told, answer, (argument,), hint, forbidden=("triton",))
        assert isinstance(got, str), f"{told}must return a type as a string; got {type(got).__name__}"
        if re.sub(r"\s", "", got).lower() == want:
            hint = "spelled as in the text: small letters, and no space."
        assert got == want, f"{told}expected {want}, got {got}\nHint: {hint}"
    return f"{len(cases)} cases passed on paper"


# -------------------------------------------------------------------------------------------------------------- launch

ROOM = KERNELS.parent / "notebooks" / "lessons" / "n24_a_kernel_without_triton"
COMPILE_SECONDS, RUN_SECONDS, GPU_SECONDS = 25, 5, 15
ENDED = {  # the signal → what to think of
    signal.SIGSEGV: "the host must not read counts and out, which are addresses on the GPU; nor may launch call itself "
    "without an end.",
    signal.SIGBUS: "counts and out are addresses on the GPU: a program on the host must not read them.",
    signal.SIGABRT: "an abort, a failed assert, or an exception in a function that must not throw.",
}
RETURN = "launch, and return: who calls you goes on."
BLOCK = 1024


@dataclass(frozen=True)
class _Case:
    """counts and out: how many numbers they begin behind an address that 16 divides."""

    name: str
    n: int
    stride: int = 1
    counts: int = 0
    out: int = 0
    why: str = ""

    @property
    def is_launched(self) -> bool:
        """Whether the last count's offset fits into 32 bits, in which the kernels count."""
        return -(2**31) <= (self.n - 1) * self.stride < 2**31 or not self.n

    @property
    def is_by_16(self) -> bool:
        return self.stride == 1 and not (self.n % 16 or self.counts % 4 or self.out % 4)

    @property
    def words(self) -> str:
        return f"{self.n},{self.stride},{self.counts},{self.out}"


_CASES = (
    _Case("16 counts in a row", 16),
    _Case("17 counts in a row", 17, why="16 does not divide n: by_16 would write beyond out."),
    _Case("16 counts of a column", 16, stride=13, why="by_16 was compiled for a stride of 1: it would read a row."),
    _Case("17 counts of a column", 17, stride=16, why="n decides as well as stride."),
    _Case("20 counts in a row", 20, why="4 divides n, and 16 does not."),
    _Case("24 counts in a row", 24, why="8 divides n, and 16 does not."),
    _Case("16 times the same count", 16, stride=0, why="by_16 was compiled for a stride of 1: 0 is another."),
    _Case("16 counts from the last on", 16, stride=-1, why="by_16 was compiled for a stride of 1, not of -1."),
    _Case("counts from the second on", 32, counts=1, why="16 does not divide the address of counts."),
    _Case("counts from the third on", 32, counts=2, why="8 divides the address of counts, and 16 does not."),
    _Case("out from the second on", 32, out=1, why="16 does not divide the address of out."),
    _Case("out from the third on", 32, out=2, why="8 divides the address of out, and 16 does not."),
    _Case("counts and out from the second on", 32, counts=1, out=1, why="16 divides neither of the two addresses."),
    _Case("counts from the second, out from the fourth on", 32, counts=1, out=3,
          why="16 divides neither of the two addresses."),
    _Case("counts and out from the fifth on", 32, counts=4, out=4),
    _Case("one block, full", 1024),
    _Case("one count more than a block", 1025),
    _Case("16 counts more than a block", 1040),
    _Case("a million counts", 1_000_000),
    _Case("no counts", 0),
    _Case("2^31 - 16 counts", 2**31 - 16),
    _Case("2^31 - 1 counts", 2**31 - 1),
    _Case("2^27 counts of a column of 16", 2**27, stride=16, why="by_16 was compiled for a stride of 1."),
    _Case("2^27 + 1 counts of a column of 16", 2**27 + 1, stride=16),
    _Case("2^27 + 1 counts, 16 apart, from the last on", 2**27 + 1, stride=-16),
    _Case("2^28 counts of a column of 13", 2**28, stride=13),
    _Case("2^28 + 1 counts of a column of 17", 2**28 + 1, stride=17),
    _Case("2^27 + 2 counts, 16 apart, from the last on", 2**27 + 2, stride=-16),
)


def _check_launch(text: str) -> str:
    assert isinstance(text, str), f"launch: must be C++ in a string; got {type(text).__name__}"
    program = _built(text)
    driver = FOLDER / "libcuda.so.1"
    for case, line in zip(_CASES, _lines(program, str(driver), _CASES), strict=True):
        if why := _wrong(case, line):
            raise AssertionError(f"launch, case {case.name}: {why}")
    report = f"{len(_CASES)} cases passed on a driver that records"
    if runtime.device().type != "cuda":
        return report
    small = [case for case in _CASES if case.n < 2**24]
    for case, line in zip(small, _lines(program, "", small), strict=True):
        if line != "right":
            raise AssertionError(f"launch, case {case.name}, on the GPU: {_on_gpu(line)}")
    return f"{report}, {len(small)} on the GPU"


def _built(text: str) -> str:
    """The program around the reader's function. AssertionError: the compiler's first complaint."""
    folder = FOLDER / "launch"
    if not (FOLDER / "counts_images.h").is_file() or not (FOLDER / "libcuda.so.1").is_file():
        raise AssertionError("launch: the images or the driver are not there: run the cells above first")
    if not shutil.which("g++"):
        raise AssertionError("launch: g++ is not here, and it is C++: apt install g++")
    folder.mkdir(exist_ok=True)
    (folder / "launch.cpp").write_text(f'#include "counts_images.h"\n#line 1 "your launch"\n{text.lstrip()}\n')
    program, main = folder / "check_launch", folder / "main.o"
    options = ["-std=c++17", f"-I{KERNELS}", f"-I{FOLDER}"]
    header, source = FOLDER / "counts_images.h", ROOM / "check_launch.cpp"
    made_of = (header, source, *(KERNELS / "cubin").glob("*.h"))
    if not main.is_file() or main.stat().st_mtime < max(path.stat().st_mtime for path in made_of):
        # The header takes most of the time: compiled once, it is found in the folder of launch.cpp.
        for what in (["-x", "c++-header", header, "-o", folder / "counts_images.h.gch"], ["-c", source, "-o", main]):
            subprocess.run(["g++", *options, *what], check=True, capture_output=True)
    program.unlink(missing_ok=True)
    command = ["g++", *options, folder / "launch.cpp", main, FOLDER / "counts_images.S", "-ldl", "-o", program]
    environment = os.environ | {"LC_ALL": "C"}  # messages that _complaint reads
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False,
                              env=environment)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"launch: g++ was stopped after {COMPILE_SECONDS} s\nHint: does a template end?") from None
    if done.returncode:
        raise AssertionError(f"launch: it does not compile: {_complaint(done.stderr)}")
    return str(program)


def _complaint(errors: str) -> str:
    match = re.search(r"your launch:(\d+):\d+: (?:fatal )?error: (.*)", errors)
    if match:
        text = re.sub(r"'void launch\(cubin::Program&.*?\)'", "launch", match[2])
        return f"{text[:300]}, in line {match[1]} of the text\nHint: launcher.h and its comments say what it takes."
    if "undefined reference to `launch" in errors or "undefined reference to launch" in errors:
        return "no launch with these parameters\nHint: the function's first line stays as it is."
    if match := re.search(r"multiple definition of [`'](\w+)", errors):
        return f"{match[1]} is defined twice\nHint: the program around it has one: write launch and what it calls."
    match = re.search(r"(?:error|undefined reference)[: ].*", errors)
    return f"{(match[0] if match else errors.strip())[:300]}\nHint: launcher.h and its comments say what it takes."


def _lines(program: str, driver: str, cases: Sequence[_Case]) -> list[str]:
    """A line a case. AssertionError, by the case's name: the program ended, or was stopped."""
    command = [program, driver, *(case.words for case in cases)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            printed, _ = running.communicate(timeout=RUN_SECONDS if driver else GPU_SECONDS)
            how = f"the program ended with status {running.returncode}\nHint: {ENDED.get(-running.returncode, RETURN)}"
        except subprocess.TimeoutExpired:
            running.kill()
            printed, _ = running.communicate()
            how = "it does not end, and was stopped\nHint: does each loop come to its end?"
    lines = [line.removeprefix("@ ") for line in printed.splitlines() if line.startswith("@ ")]
    if len(lines) != len(cases):
        name = cases[min(len(lines), len(cases) - 1)].name
        raise AssertionError(f"launch, case {name}: {how}")
    return lines


def _wrong(case: _Case, line: str) -> str:
    """What is wrong of a line of the recording driver's, with a hint; "" if nothing is."""
    if not case.is_launched:
        last = f"{case.n - 1:,} · {case.stride}"
        hint = f"(n - 1) * stride is {last}, which a kernel's 32-bit offsets do not reach: throw before you launch."
        refused = line.startswith(("error 0 ", "thrown 0 "))
        return "" if refused else f"expected an exception and no launch\nHint: {hint}"
    if line.startswith("error "):
        return f"the launcher refuses: {line.split(maxsplit=2)[2]}\nHint: {_refused(line, case)}"
    if line.startswith("thrown "):
        what = line.split(maxsplit=2)[2]
        hint = "here (n - 1) * stride fits into 32 bits, so it is to be launched."
        if not case.n:
            hint = "no counts are no error: nothing is launched, and nothing is thrown."
        elif (case.n - 1) * case.stride == -(2**31):
            hint = "here (n - 1) * stride is -2^31, the least number of 32 bits: it fits, and is to be launched."
        return f"your function threw {what}\nHint: {hint}"
    words = line.split()[1:]
    if not case.n:
        return "" if words == ["0"] else "expected no launch, got one\nHint: no counts need no blocks."
    if words[0] != "1":
        hint = "the last block may be no full one, and a grid of 0 blocks launches nothing." if words[0] == "0" else (
            "one launch of as many blocks as the counts need.")
        return f"expected 1 launch, got {words[0]}\nHint: {hint}"
    kernel, grid, shared, stream, arguments = words[1], [*map(int, words[2:5])], int(words[5]), words[6], words[7:]
    want = "by_16" if case.is_by_16 else "any"
    if kernel != want:
        why = case.why or "n, the stride and both addresses suit by_16, which has the wide accesses."
        return f"expected the kernel {want}, got {kernel}\nHint: {why}"
    blocks = math.ceil(case.n / BLOCK)
    if grid != [blocks, 1, 1]:
        got = grid[0] if grid[1:] == [1, 1] else "×".join(map(str, grid))
        hint = f"a block has {BLOCK:,} counts, and the last block may be no full one."
        wanted = f"{blocks:,} block{'s' * (blocks != 1)}"
        return f"expected {wanted}, got {got:,}\nHint: {hint}" if isinstance(got, int) else (
            f"expected {wanted} along x, got {got}\nHint: {hint}")
    numbers = [0x10000 + 4 * case.counts, 0x40000 + 4 * case.out, case.n]
    names = ["counts", "out", "n"]
    if kernel == "any":
        numbers.insert(2, case.stride), names.insert(2, "stride")
    for name, number, got in zip(names, numbers, map(int, arguments), strict=True):
        if got != number:
            return f"expected {name} to be {number:,}, got {got:,}\nHint: the arguments are {', '.join(names)}."
    if stream != "1":
        return "the launch is not in `stream`\nHint: the stream is the second argument of cubin::Launch."
    return "" if shared == 0 else f"expected no shared memory, got {shared} bytes\nHint: the description says it."


def _refused(line: str, case: _Case) -> str:
    if "beyond CUDA's limits" in line:
        return "n + 1023 is more than an int holds: count in int64_t." if case.n > 2**30 else (
            "a block has 1,024 counts, and the last block may be no full one.")
    if "does not divide" in line:
        return case.why or "by_16 takes addresses and an n that 16 divides."
    if "takes" in line and "arguments" in line:
        return "by_16 has no stride, which is a constant of it; the hidden parameters are the launcher's."
    if "threads" in line:
        return "leave the block out: the description says it."
    if "bytes" in line:
        return "n and stride are int, the pointers are pointers."
    return "the program has by_16 and any."


def _on_gpu(line: str) -> str:
    if line.startswith("wrong "):
        _, place, want, got = line.split()
        return f"out[{int(place):,}]: expected {want}, got {got}\nHint: the recorded launch was right."
    return f"{line.split(maxsplit=2)[-1]}\nHint: does the GPU suit one of the images?"


PUZZLES = {
    "parameters": Own(_check_parameters, seconds=20),
    "specialised": Own(_check_specialised, seconds=20),
    "launch": Own(_check_launch),
}
JUDGE = Judge(PUZZLES, seconds=COMPILE_SECONDS + RUN_SECONDS + GPU_SECONDS + 5)
attempt, SOLVED = JUDGE.attempt, JUDGE.solved


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, {"parameters": parameters, "specialised": specialised}[name])
