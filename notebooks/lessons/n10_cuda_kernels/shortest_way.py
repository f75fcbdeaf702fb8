"""Which of a kernel's instructions a thread executes: the shortest way through its machine code that stores what the
kernel has to store. A thread of a full block takes this way, unless its numbers need a function's slow path.
"""

from __future__ import annotations

import re
from collections import deque

LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", re.M)
FUNCTION = re.compile(r"Function : (\S+)")
Lines = list[tuple[int, str]]  # addresses and instructions


def functions(sass: str) -> dict[str, Lines]:
    """{kernel: its instructions} of what cuobjdump prints, without what fills up the end."""
    kernels = {}
    for name, text in zip(*[iter(FUNCTION.split(sass)[1:])] * 2, strict=True):
        lines = [(int(address, 16), code) for address, code in LINE.findall(text)]
        while lines and opcode(lines[-1][1]) in ("NOP", "BRA"):
            lines.pop()
        kernels[name] = lines
    return kernels


def opcode(instruction: str) -> str:
    """Without predicate, operands and what follows its first dot."""
    return re.sub(r"^@\S+\s+", "", instruction).split()[0].partition(".")[0]


def executed(lines: Lines, stores: int = 1, loads: int = 0) -> int:
    """How many instructions a thread executes that stores so often, and loads at least so often."""
    ways = _ways(lines, 0, None, stores, loads)
    if (stores, loads) not in ways:
        raise ValueError("no way through the code stores so often")
    return ways[stores, loads]


def iteration(lines: Lines) -> float:
    """Instructions for one store in a loop: of all loops those that execute the fewest, on their shortest way. A loop
    that is unrolled has several stores. 0: there is no loop that stores."""
    place = {address: number for number, (address, _) in enumerate(lines)}
    counts = []
    for end, (_, code) in enumerate(lines):
        head = _target(code, place)
        if opcode(code) == "BRA" and head is not None and head < end:
            ways = _ways(lines, head, end, most=len(lines))
            counts += [length / stores for (stores, _), length in ways.items() if stores]
    return min(counts, default=0)


def _target(code: str, place: dict[int, int]) -> int | None:
    match = re.search(r"\b0x([0-9a-f]+)\s*$", code)
    return place.get(int(match[1], 16)) if match else None


def _ways(lines: Lines, head: int, end: int | None, most: int, loads: int = 0) -> dict[tuple[int, int], int]:
    """{(stores, loads up to so many): instructions} of the shortest ways from head to each EXIT, or, in a loop, forward
    to its end; most: stores, at most."""
    place = {address: number for number, (address, _) in enumerate(lines)}
    length, shortest = {(head, 0, 0): 1}, {}
    waiting = deque(length)
    while waiting:
        number, stored, loaded = state = waiting.popleft()
        code = lines[number][1]
        name = opcode(code)
        if number == end or (end is None and name == "EXIT"):
            shortest.setdefault((stored, loaded), length[state])
        if number == end:
            continue
        following = [_target(code, place)] if name == "BRA" else []
        if name not in ("BRA", "EXIT", "RET", "CALL") or code.startswith("@"):
            following.append(number + 1)
        after = stored + (name == "STG"), min(loads, loaded + (name == "LDG"))
        for target in following:
            if target is None or target >= len(lines) or (end is not None and not number < target <= end):
                continue
            if after[0] <= most and (target, *after) not in length:
                length[target, *after] = length[state] + 1
                waiting.append((target, *after))
    return shortest
