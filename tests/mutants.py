"""What mutate.py draws: small mistakes in kernels' sources, and how many of them stand in one program.

In C++ a mutant is written as a switch, `(mutants::is<7>() ? 5 : 4)`: a program holds any number of them, each run is
one, by the number in its environment (mutants.h), and number 0 is the kernel as it is.
"""

from __future__ import annotations

import ast
import io
import itertools
import random
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Blanked before anything is drawn: comments, strings, the preprocessor's lines, numbers that change the speed alone.
NO_CODE = {
    ".cuh": r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|__launch_bounds__\([^)]*\)',
    ".py": r"\bnum_warps=[^,)]*",
}
NUMBER = re.compile(r"(?<![\w.])(\d+)((?:LL|u|\.0f?)?)(?![\w.])")
# A comparison has spaces around it, a template has not.
COMPARISON = re.compile(r"(?<= )([<>])(=?)(?= )")
NAME = r"[A-Za-z_][\w.]*"
OPERANDS = re.compile(rf"(?<![\w.])({NAME})( [-/%] )({NAME})(?![\w.(\[<])")
BARRIER = re.compile(r"__sync(?:threads|warp)\(\)|(?<!\w )\bgrid_barrier\(\)")
INDEX = re.compile(r"((?:threadIdx|blockIdx|blockDim)\.)([xy])")
CONDITION = re.compile(r"\b(?:if|while) \(")
VALUE = re.compile(r"(?:\breturn|[^=!<>]=) ([^;{}?]*);")
# What ends with a bound: the end of a loop, and the smaller of two.
BOUNDED = re.compile(r"\b(?:(range|static_range)|minimum|min)\(")
PYTHON = {
    "dropped mask": [
        (r"(?<=, )(mask|xmask|exists|in_columns)(?=[,)])", lambda m: f"{m[1]} == {m[1]}"),
        (r"\(row < end_row\) & |in_rows & | & in_columns", lambda m: ""),
    ],
    "swapped": [
        (r"((?:program_id\(|num_programs\(|axis=))([01])", lambda m: m[1] + str(1 - int(m[2]))),
        (r"\[:, None\]", lambda m: "[None, :]"),
        (r"\[None, :\]", lambda m: "[:, None]"),
        (OPERANDS, lambda m: m[3] + m[2] + m[1]),
    ],
}


@dataclass(frozen=True)
class Mutant:
    """text[start:end] of a file becomes `new`. As a switch: `before` and `after` stand around it; {} is the number."""

    path: Path
    kind: str
    start: int
    end: int
    new: str
    before: str = ""
    after: str = ""

    @property
    def line(self) -> int:
        return self.path.read_text().count("\n", 0, self.start) + 1

    @property
    def lines(self) -> tuple[str, str]:
        """The line or lines as they are and as they become."""
        text = self.path.read_text()
        first, last = text.rfind("\n", 0, self.start) + 1, text.find("\n", self.end)
        old, new = text[first:last], text[first : self.start] + self.new + text[self.end : last]
        return tuple(" ".join(part.split()) for part in (old, new))

    def alone(self) -> str:
        """The file's text with this mutant."""
        text = self.path.read_text()
        return text[: self.start] + self.new + text[self.end :]

    def goes_with(self, other: Mutant) -> bool:
        """Whether the two can be switches of one text: one within the other, or beside it; a comparison only once."""
        if self.path != other.path or self.end <= other.start or other.end <= self.start:
            return True
        same = (self.start, self.end) == (other.start, other.end)
        within = self.start <= other.start and other.end <= self.end
        around = other.start <= self.start and self.end <= other.end
        return (within or around) and not (same and (self.after == "" or other.after == "" or self.new == other.new))


def switched(path: Path, numbered: Iterable[tuple[int, Mutant]]) -> str:
    """The file's text with all these mutants as switches, each on the line where it was."""
    insertions = []
    for number, mutant in numbered:
        if mutant.path == path:
            size = mutant.end - mutant.start
            # At one place what ends comes before what begins, of what begins the outermost first, and the reverse.
            before, after = (part.replace("{}", str(number)) for part in (mutant.before, mutant.after))
            insertions += [((mutant.start, 1, -size, number), before), ((mutant.end, 0, size, -number), after)]
    text, at, parts = path.read_text(), 0, []
    for place, inserted in sorted(insertions):
        parts += [text[at : place[0]], inserted]
        at = place[0]
    return "".join([*parts, text[at:]])


def drawn(paths: Iterable[Path], generator: random.Random, bounds: bool = False) -> Iterator[Mutant]:
    """All mutants of these files in random order, the kinds in turn; bounds: the bounds one off, and no others."""
    by_kind: dict[str, list[Mutant]] = {}
    for path in paths:
        for mutant in of_bounds(path) if bounds else (of_cuda if path.suffix == ".cuh" else of_triton)(path):
            by_kind.setdefault(mutant.kind, []).append(mutant)
    kinds = sorted(by_kind)
    for kind in kinds:
        generator.shuffle(by_kind[kind])
    generator.shuffle(kinds)
    for kind in itertools.cycle(kinds):
        if by_kind[kind]:
            yield by_kind[kind].pop()
        elif not any(by_kind.values()):
            return


def code(path: Path) -> str:
    """The file's text, blanks in place of all that is no code or cannot matter."""
    text = path.read_text()
    spans = [m.span() for m in re.finditer(NO_CODE[path.suffix], text, re.M | re.S)]
    if path.suffix == ".py":
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                spans.append(tuple(starts[row - 1] + column for row, column in (token.start, token.end)))
    for start, end in spans:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def of_bounds(path: Path) -> Iterator[Mutant]:
    """Every bound of a file one more and one less: what a comparison asks, where a loop ends, what a minimum takes.

    For integers `a < b + 1` is `a <= b`, and `a <= b - 1` is `a < b`.
    """
    text, source = code(path), path.read_text()
    for sign in COMPARISON.finditer(text):
        for step in (1, -1):
            after = f" mutants::Bound<{{}}, {step}>() +"
            yield Mutant(path, "bound", *sign.span(), f"{sign[0]} {step} +", "", after)
    for match in BOUNDED.finditer(text):
        arguments = _arguments(text, match.end())
        for start, end in arguments[: 2][-1:] if match[1] else arguments:
            for step in (1, -1):
                new = f"({source[start:end]}) {'+' if step > 0 else '-'} 1"
                yield Mutant(path, "bound", start, end, new, "((", f") + (mutants::is<{{}}>() ? {step} : 0))")


def of_triton(path: Path) -> Iterator[Mutant]:
    """The mutants of a file of Triton kernels that Python can read: in a function's head a mask is a name alone."""
    text = code(path)

    def found(kind: str, pattern: str | re.Pattern, new: Callable[[re.Match], str]) -> Iterator[Mutant]:
        for match in re.finditer(pattern, text):
            mutant = Mutant(path, kind, *match.span(), new(match))
            with suppress(SyntaxError):
                ast.parse(mutant.alone())
                if mutant.new != match[0]:
                    yield mutant

    constants = (found("constant", NUMBER, lambda m, step=step: str(abs(int(m[1]) + step)) + m[2]) for step in (1, -1))
    yield from dict.fromkeys(itertools.chain(*constants))  # a 0 becomes 1, up or down
    yield from found("comparison", COMPARISON, lambda m: m[1] + "=" * (not m[2]))
    for kind, patterns in PYTHON.items():
        for pattern, new in patterns:
            yield from found(kind, pattern, new)


def of_cuda(path: Path) -> Iterator[Mutant]:
    """The mutants of a .cuh."""
    text = code(path)

    def instead(kind: str, span: tuple[int, int], new: str, as_bool: bool = False) -> Mutant:
        """`new` in place of an expression."""
        around = ("bool(", "))") if as_bool else ("", ")")
        return Mutant(path, kind, *span, new, f"(mutants::is<{{}}>() ? {new} : {around[0]}", around[1])

    def compared(kind: str, at: int, own: str, as_: str, new: str) -> Mutant:
        return Mutant(path, kind, at, at + len(own), new, f"< mutants::As<{{}}, '{as_}'>() ")

    for number in NUMBER.finditer(text):
        for value in dict.fromkeys((int(number[1]) + 1, abs(int(number[1]) - 1))):
            yield instead("constant", number.span(), f"{value}{number[2]}")
    for sign in COMPARISON.finditer(text):
        new = sign[1] + "=" * (not sign[2])
        yield compared("comparison", sign.start(), sign[0], {"<=": "l", ">=": "g"}.get(new, new), new)
    for barrier in BARRIER.finditer(text):
        yield instead("dropped barrier", barrier.span(), "void()")
    for index in INDEX.finditer(text):
        yield instead("swapped", index.span(), index[1] + ("y" if index[2] == "x" else "x"))
    for operands in OPERANDS.finditer(text):
        if operands[1] != operands[3] and _binds_least(text, operands):
            yield instead("swapped", operands.span(), operands[3] + operands[2] + operands[1])
    spans = set()
    for condition in CONDITION.finditer(text):
        start, end = condition.end(), _closing(text, condition.end())
        if re.search(r";|(?<![=!<>])=(?!=)|cudaSuccess", text[start:end]):
            continue  # it declares or assigns; or it asks for an error of CUDA, which the host never has
        if condition[0].startswith("if"):  # as if it did not stand there
            leaves = re.match(r"\)\s*\{?\s*(?:return|continue|break)\b", text[end:])
            yield instead("dropped mask", (start, end), "false" if leaves else "true", as_bool=True)
        spans.add((start, end))
    spans |= {value.span(1) for value in VALUE.finditer(text)}
    for start, end in sorted(spans):
        for word, dropped in (("&&", "true"), ("||", "false")):
            parts = _parts(text, start, end, word)
            for span in parts if len(parts) > 1 else []:
                yield instead("dropped mask", span, dropped, as_bool=True)
    for sign in re.finditer(r"(?<= )[<>]=?(?= [\w.]+ \?)", text):
        yield compared("dropped mask", sign.start(), sign[0], "t", f"{sign[0]} true ||")


def _binds_least(text: str, operands: re.Match) -> bool:
    """Whether brackets around both operands change nothing."""
    before, after = text[: operands.start()].rstrip(), text[operands.end() :].lstrip()[:1]
    tight = operands[2] != " - "
    if not before.endswith(("return", *"([{,;=?:&|<>", *"+-" * tight)):
        return False
    return after in (*")]},;?:&|<>=+-", *"*/%" * tight)


def _closing(text: str, at: int) -> int:
    """The place of the bracket that closes the one before `at`."""
    depth = 1
    while depth:
        depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return at - 1


def _arguments(text: str, at: int) -> list[tuple[int, int]]:
    """The positional arguments of the call whose bracket opens before `at`."""
    end, places = _closing(text, at), [at]
    while at < end:
        at = _closing(text, at + 1) if text[at] in "([{" else at
        if text[at] == ",":
            places.append(at + 1)
        at += 1
    ends = [*(place - 1 for place in places[1:]), end]
    spans = [re.compile(r"\S(?:.*\S)?", re.S).search(text, *pair) for pair in zip(places, ends, strict=True)]
    return [span.span() for span in spans if span and not re.match(r"\w+=", span[0])]


def _parts(text: str, start: int, end: int, word: str) -> list[tuple[int, int]]:
    """The operands of && or || in an expression that has these alone outside of brackets; else none."""
    places, at = [], start
    while at < end:
        if text[at] in "([{":
            at = _closing(text, at + 1)
        elif text[at] in ",?)" or (text[at : at + 2] in ("&&", "||") and text[at : at + 2] != word):
            return []
        elif text[at : at + 2] == word:
            places.append(at)
            at += 1
        at += 1
    bounds = zip([start, *(place + 2 for place in places)], [*places, end], strict=True)
    spans = [re.compile(r"\S(?:.*\S)?", re.S).search(text, a, b) for a, b in bounds]
    return [span.span() for span in spans if span]
