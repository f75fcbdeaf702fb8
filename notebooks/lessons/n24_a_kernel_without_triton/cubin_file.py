"""A section of a cubin, which is an ELF file of 64 bits."""

from __future__ import annotations

import struct


def section(image: bytes, name: str) -> bytes:
    """The bytes of the section of this name. LookupError: there is none, with those that there are."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, of_names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<II16xQQ", image, table + number * size) for number in range(count)]
    start = headers[of_names][2]
    sections = {}
    for place, _, offset, length in headers:
        text = image[start + place : image.index(b"\0", start + place)].decode()
        sections[text] = image[offset : offset + length]
    if name not in sections:
        raise LookupError(f"the cubin has no section {name}: it has {', '.join(filter(None, sections))}")
    return sections[name]
