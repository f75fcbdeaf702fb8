"""Images → source that a program is compiled with: a header with what the launcher takes, and the bytes.

The bytes are an assembler file, by .incbin: aligned, in read-only memory. Each image's symbol is local. The header
knows one more, of all of them: it is hidden, and in a section group (COMDAT) that is named by the contents. So two
copies of a bundle link into one program, which has the bytes once. An assembler file is no part of link-time
optimisation, which would meet the symbols of inline assembler twice. Where the assembler is not GNU's or LLVM's,
`array` writes the bytes as a C++ array: hidden too, and weak, as C++ has no other way to a group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from ..dispatch.cubin_files import COOPERATIVE, EARLY, PLAIN, put
from .compile import CubinError, description_of

KINDS = {PLAIN: "plain", COOPERATIVE: "cooperative", EARLY: "early"}
ALIGNMENT = 64
MAGICS = (b"\x7fELF", b"\x50\xed\x55\xba")  # of a cubin and of a fatbin; PTX is text


def embed(name: str, images: Sequence[Path], folder: Path, array: bool = False) -> list[Path]:
    """Write <name>.h and <name>.S, with `array` <name>.cpp. Raises CubinError: a name, or a file that is no image."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise CubinError(f"{name} becomes a namespace of C++: letters, digits and underscores")
    if not images:
        raise CubinError(f"{name} is given no image")
    parts, tables, entries, size = [], [], [], 0
    for number, path in enumerate(images):
        image = _read(path)
        parts.append((f"{number}_" + re.sub(r"\W", "_", path.name.removesuffix(".cubin")), path, image))
        described = description_of(path)
        if described is not None:
            tables.append(_table(number, described))
        entries.append((size, len(image), f"&description_{number}" if described else "nullptr"))
        size += -(-len(image) // ALIGNMENT) * ALIGNMENT
    base = f"cubin_{name}_{hashlib.sha256(b''.join(image for *_, image in parts)).hexdigest()[:16]}"
    header, bytes_ = folder / f"{name}.h", folder / f"{name}.{'cpp' if array else 'S'}"
    put(header, _header(name, base, tables, entries).encode())
    text = _as_array(header, base, parts) if array else _as_assembler(base, parts)
    put(bytes_, f"// Written by python -m kernels.cubin embed.\n{text}".encode())
    return [header, bytes_]


def _read(path: Path) -> bytes:
    try:
        image = path.read_bytes()
    except OSError as error:
        raise CubinError(f"{path} cannot be read: {error.strerror}") from None
    if not image.startswith(MAGICS) and b".version" not in image:
        raise CubinError(f"{path} is neither a cubin, nor a fatbin, nor PTX")
    return image


def _header(name: str, base: str, tables: list[str], entries: list[tuple]) -> str:
    images = ",\n    ".join(f"{{{base} + {offset}, {size}, {described}}}" for offset, size, described in entries)
    # In an unnamed namespace each file that includes it has a table of its own: small, and no file's must be another's.
    return f"""// Written by python -m kernels.cubin embed: static cubin::Program program({name}::images);
#pragma once

#include "cubin/launcher.h"

extern "C" __attribute__((visibility("hidden"))) const unsigned char {base}[];

namespace {name} {{
namespace {{

{"".join(tables)}const cubin::Image images[] = {{
    {images},
}};

}}  // namespace
}}  // namespace {name}
"""


def _table(number: int, described: dict) -> str:
    rows = [
        f'{{"{parameter["name"]}", \'{parameter["type"]}\', {parameter["bytes"]}, {parameter["multiple"]}}}'
        for parameter in described["parameters"]
    ]
    table = f"const cubin::Parameter parameters_{number}[] = {{{', '.join(rows)}}};\n" if rows else ""
    parameters = f"parameters_{number}" if rows else "nullptr"
    return f"""{table}const cubin::Description description_{number} = {{
    "{described["name"]}", "{described["entry"]}", {described["threads"]}, {described["shared"]}, \
cubin::{KINDS[described["kind"]]}, {parameters}, {len(rows)}, {described["hidden"]}}};
"""


def _as_assembler(base: str, parts: Sequence[tuple[str, Path, bytes]]) -> str:
    images = "".join(
        f"""    .balign {ALIGNMENT}
    .type {base}_{name}, %object
    .size {base}_{name}, {len(image)}
{base}_{name}:
    .incbin "{path.resolve()}"
    .if . - {base}_{name} != {len(image)}
    .error "{path} has another size than when it was embedded: embed it again"
    .endif
"""
        for name, path, image in parts
    )
    return f"""    .section .note.GNU-stack,"",%progbits
    .section .rodata.{base},"aG",%progbits,{base},comdat
    .balign {ALIGNMENT}
    .globl {base}
    .hidden {base}
    .type {base}, %object
{base}:
{images}"""


def _as_array(header: Path, base: str, parts: Sequence[tuple[str, Path, bytes]]) -> str:
    padded = b"".join(image + bytes(-len(image) % ALIGNMENT) for _, _, image in parts)
    rows = ",\n".join(",".join(map(str, padded[i : i + 32])) for i in range(0, len(padded), 32))
    return f"""#include "{header.name}"

extern "C" __attribute__((weak)) alignas({ALIGNMENT}) const unsigned char {base}[] = {{
{rows}}};
"""
