"""Images → source that a program is compiled with: a header with what the launcher takes, and the bytes.

The bytes are an assembler file, by .incbin: aligned, in read-only memory, each image a hidden weak symbol in a section
group (COMDAT) that is named by its contents. So two bundles that share a kernel, or two copies of one bundle, link into
one program, which has the image once; in the program the symbol is local. An assembler file is not part of link-time
optimisation, which would meet a symbol of inline assembler twice. Where the assembler is not GNU's or LLVM's, `array`
writes the bytes as a C++ array under the same symbol.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from kernels.cubin.compile import CubinError, description_of
from kernels.dispatch.cubin_files import COOPERATIVE, EARLY, PLAIN, put

KINDS = {PLAIN: "plain", COOPERATIVE: "cooperative", EARLY: "early"}
MAGICS = (b"\x7fELF", b"\x50\xed\x55\xba")  # of a cubin and of a fatbin; PTX is text


def embed(name: str, images: Sequence[Path], folder: Path, array: bool = False) -> list[Path]:
    """Write <name>.h and <name>.S, with `array` <name>.cpp. Raises CubinError: a name, or a file that is no image."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise CubinError(f"{name} becomes a namespace of C++: letters, digits and underscores")
    if not images:
        raise CubinError(f"{name} is given no image")
    symbols, tables, entries = {}, [], []
    for path in images:
        image = _read(path)
        stem = re.sub(r"\W", "_", path.name.removesuffix(".cubin"))
        symbol = f"cubin_{stem}_{hashlib.sha256(image).hexdigest()[:16]}"
        symbols[symbol] = path, image
        described = description_of(path)
        if described is not None:
            tables.append(_table(len(entries), described))
        entries.append(f"{{{symbol}, {len(image)}, {f'&description_{len(entries)}' if described else 'nullptr'}}}")
    header, bytes_ = folder / f"{name}.h", folder / f"{name}.{'cpp' if array else 'S'}"
    put(header, _header(name, symbols, tables, entries).encode())
    write = _as_array if array else _as_assembler
    start = f'#include "{header.name}"\n' if array else '    .section .note.GNU-stack,"",%progbits\n'
    parts = [write(symbol, *of) for symbol, of in symbols.items()]
    put(bytes_, ("// Written by python -m kernels.cubin embed.\n" + start + "".join(parts)).encode())
    return [header, bytes_]


def _read(path: Path) -> bytes:
    try:
        image = path.read_bytes()
    except OSError as error:
        raise CubinError(f"{path} cannot be read: {error.strerror}") from None
    if not image.startswith(MAGICS) and b".version" not in image:
        raise CubinError(f"{path} is neither a cubin, nor a fatbin, nor PTX")
    return image


def _header(name: str, symbols: dict, tables: list[str], entries: list[str]) -> str:
    declared = "".join(
        f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {symbol}[];\n' for symbol in symbols
    )
    images = ",\n    ".join(entries)
    # In an unnamed namespace each file that includes it has a table of its own: small, and no file's must be another's.
    return f"""// Written by python -m kernels.cubin embed: static cubin::Program program({name}::images);
#pragma once

#include "cubin/launcher.h"

{declared}
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
        f'{{"{each["name"]}", \'{each["type"]}\', {each["bytes"]}, {each["multiple"]}}}'
        for each in described["parameters"]
    ]
    table = f"const cubin::Parameter parameters_{number}[] = {{{', '.join(rows)}}};\n" if rows else ""
    parameters = f"parameters_{number}" if rows else "nullptr"
    return f"""{table}const cubin::Description description_{number} = {{
    "{described["name"]}", "{described["entry"]}", {described["threads"]}, {described["shared"]}, \
cubin::{KINDS[described["kind"]]}, {parameters}, {len(rows)}, {described["hidden"]}}};
"""


def _as_assembler(symbol: str, path: Path, image: bytes) -> str:
    return f"""
    .section .rodata.{symbol},"aG",%progbits,{symbol},comdat
    .balign 64
    .weak {symbol}
    .hidden {symbol}
    .type {symbol}, %object
    .size {symbol}, {len(image)}
{symbol}:
    .incbin "{path.resolve()}"
"""


def _as_array(symbol: str, path: Path, image: bytes) -> str:
    rows = (",".join(map(str, image[i : i + 32])) for i in range(0, len(image), 32))
    body = ",\n".join(rows)
    return f'\nextern "C" __attribute__((weak)) alignas(64) const unsigned char {symbol}[] = {{\n{body}}};\n'
