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


def executed(lines: list[tuple[int, str]], stores: int = 1) -> list[str]:
    """The shortest way from the first instruction to an end that stores so often."""
    place = {address: number for number, (address, _) in enumerate(lines)}
    start = (0, 0)
    came: dict[tuple[int, int], tuple[int, int] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = number, stored = waiting.popleft()
        code = lines[number][1]
        name, conditional = opcode(code), code.startswith("@")
        if name == "EXIT" and stored == stores:
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
            state_next = each, stored + (name == "STG")
            if state_next[1] <= stores and state_next not in came:
                came[state_next] = state
                waiting.append(state_next)
    raise ValueError("no way through the code stores so often")
