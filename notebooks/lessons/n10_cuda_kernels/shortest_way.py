"""Which of a kernel's instructions a thread executes: the shortest way through its machine code that stores what the
kernel has to store. A thread of a full block takes this way, unless its numbers need a function's slow path.
"""

from __future__ import annotations

import re
from collections import deque

LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", re.M)
FUNCTION = re.compile(r"Function : (\S+)")


def functions(sass: str) -> dict[str, list[tuple[int, str]]]:
    """{kernel: its instructions, with their addresses} of what cuobjdump prints, without what fills up the end."""
    found = {}
    for name, text in zip(*[iter(FUNCTION.split(sass)[1:])] * 2, strict=True):
        lines = [(int(address, 16), code) for address, code in LINE.findall(text)]
        while lines and opcode(lines[-1][1]) in ("NOP", "BRA"):
            lines.pop()
        found[name] = lines
    return found


def opcode(instruction: str) -> str:
    """Without predicate, operands and what follows its first dot."""
    return re.sub(r"^@\S+\s+", "", instruction).split()[0].partition(".")[0]


def executed(lines: list[tuple[int, str]], stores: int = 1, loads: int = 0) -> list[str]:
    """The shortest way from the first instruction to an end that stores so often, and loads at least so often."""
    place = {address: number for number, (address, _) in enumerate(lines)}
    start = (0, 0, 0)
    came: dict[tuple[int, int, int], tuple[int, int, int] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = number, stored, loaded = waiting.popleft()
        code = lines[number][1]
        name, conditional = opcode(code), code.startswith("@")
        if name == "EXIT" and stored == stores and loaded == loads:
            way = []
            while state is not None:
                way.append(lines[state[0]][1])
                state = came[state]
            return way[::-1]
        target = re.search(r"\b0x([0-9a-f]+)\s*$", code) if name in ("BRA", "CALL") else None
        following = []
        if target and name == "BRA":
            following.append(place.get(int(target[1], 16)))
        if name not in ("BRA", "EXIT", "RET", "CALL") or conditional:
            following.append(number + 1)
        for each in following:
            if each is None or each >= len(lines):
                continue
            state_next = each, stored + (name == "STG"), min(loads, loaded + (name == "LDG"))
            if state_next[1] <= stores and state_next not in came:
                came[state_next] = state
                waiting.append(state_next)
    raise ValueError("no way through the code stores so often")


def iteration(lines: list[tuple[int, str]]) -> float:
    """Instructions for one store in a loop: of all loops those that execute the fewest, on their shortest way. A loop
    that is unrolled has several stores. 0: there is no loop that stores."""
    place = {address: number for number, (address, _) in enumerate(lines)}
    found = []
    for number, (_, code) in enumerate(lines):
        head = _target(code, place)
        if opcode(code) == "BRA" and head is not None and head < number:
            found += [length / stores for stores, length in _ways_back(lines, place, head, number).items()]
    return min(found, default=0)


def _target(code: str, place: dict[int, int]) -> int | None:
    found = re.search(r"\b0x([0-9a-f]+)\s*$", code)
    return place.get(int(found[1], 16)) if found else None


def _ways_back(lines: list[tuple[int, str]], place: dict[int, int], head: int, end: int) -> dict[int, int]:
    """{stores: instructions} of the shortest ways forward from a loop's head to the branch that goes back to it."""
    length = {(head, 0): 1}
    waiting = deque(length)
    while waiting:
        number, stored = state = waiting.popleft()
        code = lines[number][1]
        name = opcode(code)
        following = [_target(code, place)] if name == "BRA" and number != end else []
        if number != end and (name not in ("BRA", "EXIT", "RET", "CALL") or code.startswith("@")):
            following.append(number + 1)
        for each in following:
            if each is not None and number < each <= end and (each, stored + (name == "STG")) not in length:
                length[each, stored + (name == "STG")] = length[state] + 1
                waiting.append((each, stored + (name == "STG")))
    return {stored: steps for (number, stored), steps in length.items() if number == end and stored}
