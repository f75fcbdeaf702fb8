"""Small mistakes, made by a seeded generator in the ops' kernels: does a test that runs on a CPU alone see each?

    python tests/mutate.py --count 20 --seed 0           # of all ops: as many bounds, then as many of the other kinds
    python tests/mutate.py --count 20 --seed 0 softmax   # of this one
    python tests/mutate.py --kind bounds --all           # every bound of every kernel
    python tests/mutate.py --kind bounds --all --share 2/4   # the second of four shares

A bound is what a comparison asks, where a loop ends, or what a minimum takes: one more, and one less. Any other mutant
is a constant one off, `<` for `<=` or the reverse, a barrier, a condition or a mask dropped, or two axes or operands
swapped. They stand in a .cuh or a file of Triton kernels of an op, and are written into a copy of kernels/ in a
temporary folder; the sources are not touched.

Of CUDA all mutants of an op are in one program as switches (mutants.py): its host test is built once, with
AddressSanitizer and UBSan, and run for each; a dropped barrier also with ThreadSanitizer. What that lets live meets the
op's Python tests, with CUDA on the host. What cannot be a switch (an array's size, a template's argument, a constexpr)
is built alone, and counted so. What compiles neither way, or on a GPU alone, is not drawn.

Of Triton each mutant meets the op's Python tests in the interpreter. One that Triton itself turns down, for shapes that
do not go together, is not counted, and another is drawn.

Before that each of these runs must pass as number 0, which is no mutant. A mutant that number 0 does not come to, and a
comparison that then always gives the same, cannot be killed. One that takes many times as long is killed, by a time
limit.

Printed: where, what, and what killed it, or ALIVE: a hole in the tests, or a change that they cannot see, of speed say,
which only a reader can tell. The same seed draws the same mutants from the same sources.

Exit status: 0, all were killed; 1, some are alive; 2, number 0 fails, or there are not so many mutants; 130, stopped.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from mutant_copies import SECONDS, Broken, Copies, Stage, pytest_stage, said_by
from mutants import Mutant, drawn, switched

ROOT = Path(__file__).resolve().parent.parent
GXX = ["g++", "-std=c++20", "-pthread", "-Ikernels", "-w", "-Werror=vla", "-x", "c++"]
SANITIZERS = {
    "asan": ["-Og", "-g1", "-fsanitize=address,undefined", "-fsanitize=bounds-strict", "-fno-sanitize-recover=all"],
    "tsan": ["-Og", "-g1", "-fsanitize=thread"],
}
# The last line of a traceback, where Triton itself turns a kernel down: shapes that do not go together, say.
REFUSED = re.compile(r"/triton/(?:language|compiler)/\w+\.py:\d+: \w+$", re.M)


@dataclass
class Result:
    mutant: Mutant
    alone: bool = False
    by: str = ""  # the stage's name
    said: str = ""
    reached: bool = False
    does_not_build: str = ""

    @property
    def text(self) -> str:
        old, new = self.mutant.lines
        end = f"killed by {self.by}: {self.said}" if self.by else "ALIVE"
        end += "" if self.by or self.reached or self.alone else ", no test comes to where it differs"
        end = f"NOT BUILT: {self.does_not_build[:300]}" if self.does_not_build else end
        place = f"{self.mutant.path.relative_to(ROOT)}:{self.mutant.line}, {self.mutant.kind}"
        return f"{place}{', built alone' * self.alone}\n    {old}\n    {new}\n    {end}"


def of_an_op_in_triton(op: str, sequence: Iterator[Mutant], count: int, copies: Copies) -> list[Result]:
    copy, results = copies.new(f"{op}_triton"), []
    stages = [pytest_stage(op, slow, "cuda or cpp") for slow in (False, True)]
    started = set()
    for mutant in sequence:
        if len(results) == count:
            break
        result = Result(mutant, reached=True)
        file = copy / result.mutant.path.relative_to(ROOT)
        printed = ""
        for stage in stages:
            if stage.name not in started:
                started.add(stage.name)
                copies.unchanged(stage, copy)
            if not stage.there:
                continue
            file.write_text(result.mutant.alone())
            status, printed = copies.run(stage, copy, 1)
            file.write_text(result.mutant.path.read_text())
            if status != 0:
                result.by, result.said = stage.name, said_by(status, printed, stage)
                break
        if not (result.by and REFUSED.search(printed)):
            results.append(result)
    return results


def chosen(op: str, sequence: Iterator[Mutant], count: int, copies: Copies) -> tuple[dict[int, Mutant], set[int]]:
    """So many mutants that compile, by number in the order of their drawing; and the numbers of those built alone."""
    copy = copies.new(f"{op}_chosen")
    test = f"kernels/ops/{op}/test_{op}.cu"
    mutants: dict[int, Mutant] = {}
    alone: set[int] = set()
    numbers = itertools.count(1)

    def write(numbered: dict[int, Mutant]) -> None:
        for path in (ROOT / "kernels" / "ops" / op).rglob("*.cuh"):
            (copy / path.relative_to(ROOT)).write_text(switched(path, numbered.items()))

    def compiled_by_host(new: dict[int, Mutant]) -> set[int]:
        write(new)
        printed = copies.processes.run([*GXX, "-E", "-P", test], SECONDS, cwd=copy)[1]
        return {int(number) for number in re.findall(r"mutants::\w+<(\d+)[,>]", printed)}

    def culprits(new: dict[int, Mutant], log: str) -> set[int]:
        """Those whose line the compiler names in an error, or names at all; or else all."""
        for pattern in (r"([\w/]+\.cuh):(\d+):\d+: error", r"([\w/]+\.cuh):(\d+)"):
            named = {(Path(file).resolve().name, int(line)) for file, line in re.findall(pattern, log)}
            if guilty := {number for number, mutant in new.items() if (mutant.path.name, mutant.line) in named}:
                return guilty
        return set(new)

    left = True
    while left and len(mutants) < count:
        new: dict[int, Mutant] = {}
        while left and len(mutants) + len(new) < count:
            if (mutant := next(sequence, None)) is None:
                left = False
            elif all(mutant.goes_with(other) for other in (*mutants.values(), *new.values())):
                new[next(numbers)] = mutant
        new = {number: new[number] for number in sorted(compiled_by_host(new))}
        as_switches = dict(new)
        while True:
            write(as_switches)
            errors = copies.compile([*GXX, "-fsyntax-only", test], copy)
            if not errors:
                break
            if not as_switches:
                raise Broken(f"{test} does not compile:\n{errors[:2000]}")
            for number in culprits(as_switches, errors):
                del as_switches[number]
        for number, mutant in new.items():
            if number not in as_switches:
                write({})
                (copy / mutant.path.relative_to(ROOT)).write_text(mutant.alone())
                if copies.compile([*GXX, "-fsyntax-only", test], copy):
                    continue
                alone.add(number)
            mutants[number] = mutant
    return mutants, alone


def of_an_op_in_cuda(op: str, sequence: Iterator[Mutant], count: int, copies: Copies) -> list[Result]:
    mutants, alone = chosen(op, sequence, count, copies)
    together = copies.new(op)
    for path in (ROOT / "kernels" / "ops" / op).rglob("*.cuh"):
        text = switched(path, [(number, mutant) for number, mutant in mutants.items() if number not in alone])
        (together / path.relative_to(ROOT)).write_text(text)
    test = f"kernels/ops/{op}/test_{op}.cu"
    stages = [
        Stage(f"test_{op}.cu ({name})", [*(["setarch", "-R"] if name == "tsan" else []), f"./{name}"],
              build=[*GXX, *flags, test, "-o", name])
        for name, flags in SANITIZERS.items()
    ]
    stages += [pytest_stage(op, slow, "triton") for slow in (False, True)]
    started = set()

    def meets(number: int) -> Result:
        mutant = mutants[number]
        result = Result(mutant, alone=number in alone)
        copy = together
        if result.alone:
            copy = copies.new(f"{op}_{number}")
            (copy / mutant.path.relative_to(ROOT)).write_text(mutant.alone())
        for stage in stages:
            if "tsan" in stage.name and mutant.kind != "dropped barrier":
                continue
            if stage.name not in started:
                started.add(stage.name)
                copies.unchanged(stage, together)
            if not stage.there:
                continue
            if result.alone:
                if stage.build and (errors := copies.compile(stage.build, copy)):
                    result.does_not_build = errors
                    break
            elif number not in stage.reached:
                continue
            result.reached = True
            status, printed = copies.run(stage, copy, number)
            if status != 0:
                result.by, result.said = stage.name, said_by(status, printed, stage)
                break
        if result.alone:
            for stage in stages:
                stage.leave(copy)
            shutil.rmtree(copy)
        return result

    return [meets(number) for number in sorted(mutants)]


def summary(results: list[Result]) -> str:
    killers = collections.Counter(
        "time limits" if result.said.startswith("a time limit") else re.sub(r"test_\w+\.cu \((\w+)\)", r"\1", result.by)
        for result in results if result.by
    )
    alive = [result for result in results if not result.by and not result.does_not_build]
    parts = [f"{len(results)} mutants: {killers.total()} killed"]
    parts += [f"({', '.join(f'{count} by {name}' for name, count in sorted(killers.items()))})"] if killers else []
    text = " ".join(parts) + f", {len(alive)} alive"
    if unreached := sum(not result.reached for result in alive):
        text += f" ({unreached} that no test comes to)"
    if not_built := sum(bool(result.does_not_build) for result in results):
        text += f", {not_built} not built"
    return f"{text}; {sum(result.alone for result in results)} built alone"


def share(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no share, such as 2/4")
    return int(match[1]), int(match[2])


def mutate(count: float, seed: int, ops: list[str], bounds: bool, part: tuple[int, int],
           copies: Copies) -> list[Result]:
    """The results of so many mutants, bounds or others, printed op by op as they come; count: math.inf for all.

    part: (k, n), the k-th of n shares of what is drawn.
    """
    folders = sorted(path for path in (ROOT / "kernels" / "ops").iterdir() if not ops or path.name in ops)
    groups = [(folder, sorted(folder.rglob("*.cuh")), of_an_op_in_cuda) for folder in folders]
    groups += [
        (folder, [path for path in sorted(folder.glob("triton_*.py")) if "@triton.jit" in path.read_text()],
         of_an_op_in_triton)
        for folder in folders
    ]
    groups = [group for group in groups if group[1]]
    if unknown := {*ops} - {folder.name for folder, _, _ in groups}:
        raise Broken(f"no op with kernels: {', '.join(sorted(unknown))}")
    shares = [count if count == math.inf else len(range(i, count, len(groups))) for i in range(len(groups))]

    def of_a_group(i: int) -> list[Result]:
        folder, paths, of_an_op = groups[i]
        sequence = drawn(paths, random.Random(f"{seed} {folder.name} {of_an_op.__name__}"), bounds)
        sequence = itertools.islice(sequence, part[0] - 1, None, part[1])
        try:
            results = of_an_op(folder.name, sequence, shares[i], copies) if shares[i] else []
        except Broken as broken:
            raise Broken(f"{folder.name}: {broken}") from None
        if len(results) < shares[i] < math.inf:
            raise Broken(f"{folder.name} has no {shares[i]} mutants")
        return results

    results = []
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(of_a_group, i) for i in range(len(groups))]
        try:
            for future in waiting:
                while wait([future], timeout=1).not_done:
                    pass  # another thread may be given a signal, which this one sees when it waits no longer
                for result in future.result():
                    results.append(result)
                    print(result.text, flush=True)
        except BaseException:
            for future in waiting:
                future.cancel()
            copies.processes.stop()
            raise
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help="default: all")
    parser.add_argument("--count", type=int, default=20, help="of each kind that is drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=("bounds", "others"), help="default: the bounds, then the others")
    parser.add_argument("--all", action="store_true", help="instead of --count")
    parser.add_argument("--share", type=share, default=(1, 1), metavar="K/N", help="the K-th of N shares of them")
    options = parser.parse_args()
    if options.count < 1:
        parser.error("--count is at least 1")
    count = math.inf if options.all else options.count
    results = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="mutate_") as folder:
        try:
            for kind in [options.kind] if options.kind else ("bounds", "others"):
                copies = Copies(Path(folder, kind), ROOT)
                results += mutate(count, options.seed, options.ops, kind == "bounds", options.share, copies)
        except Broken as broken:
            print(broken, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
        except Exception:  # a status of its own: 1 says that mutants are alive
            traceback.print_exc()
            return 2
    print(summary(results))
    return 0 if all(result.by for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
