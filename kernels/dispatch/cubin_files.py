"""Cubins on disk, each whole or not at all: what compiles them (cubin.py, nvrtc.py) writes here and reads from here.

A cubin is two files in cubins/ of the cache (runtime.CACHE: build/ of a checkout): the image, named by its contents,
and a JSON file with what a launch must know and how the image came about. The JSON file is written last, and each file
is moved into its place: so processes may compile the same kernel at once, and one that is killed leaves nothing that
counts.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from ..runtime import CACHE, made

CUBINS = CACHE / "cubins"
PLAIN, COOPERATIVE, EARLY = range(3)  # kernels/cubin/libcuda.h's Kind


class Damaged(RuntimeError):
    """A file of the cache that is not what was written."""


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: its file and what a launch of it must know.

    threads: a block; shared: bytes of shared memory a block; parameters: how many the kernel takes, Triton's hidden
    ones at the end included; kind: PLAIN, COOPERATIVE if all blocks must be resident at once, or EARLY if the kernel
    may begin before the one before it in the stream has ended (launch_pdl).
    """

    path: str
    name: str
    threads: int
    shared: int
    parameters: int
    kind: int


def description_of(stem: Path) -> Path:
    """The JSON file of the cubin `stem`: it is there if and only if the cubin was written."""
    return stem.with_name(stem.name + ".json")


def write(stem: Path, image: bytes, arch: int, about: dict[str, str], **launch) -> None:
    """Write a cubin for sm_<arch>. launch: Compiled's fields but the path; about: how it came about, for people."""
    digest = hashlib.sha256(image).hexdigest()
    cubin = f"{stem.name}-{digest[:8]}.cubin"
    fields = {name: value for name, value in asdict(Compiled(cubin, **launch)).items() if name != "path"}
    description = {"cubin": cubin, **fields, "arch": arch, "bytes": len(image), "sha256": digest, **about}
    put(stem.with_name(cubin), image)
    put(description_of(stem), json.dumps(description, indent=1).encode())  # last: by it the cubin is found


def read(stem: Path, arch: int) -> Compiled:
    """What was written. Raises Damaged, naming the file: it is unreadable, truncated, changed, or for another GPU."""
    description = description_of(stem)
    again = f"remove {description} and it is compiled again"
    try:
        fields = json.loads(description.read_text())
        cubin = description.with_name(fields["cubin"])
        image = cubin.read_bytes()
        launch = {name: fields[name] for name in ("name", "threads", "shared", "parameters", "kind")}
        size, digest, made_for = fields["bytes"], fields["sha256"], fields["arch"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"the cached kernel {stem.name} cannot be read ({error}): {again}") from None
    if len(image) != size:
        raise Damaged(f"the cached kernel {cubin} is truncated, {len(image)} of {size} bytes: {again}")
    if hashlib.sha256(image).hexdigest() != digest:
        raise Damaged(f"the cached kernel {cubin} was changed: {again}")
    if made_for != arch:
        raise Damaged(f"the cached kernel {cubin} is for sm_{made_for}, this GPU is sm_{arch}: {again}")
    return Compiled(str(cubin), **launch)


def put(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all."""
    with tempfile.NamedTemporaryFile(dir=made(path.parent), delete=False) as file:
        file.write(data)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)
