"""The name "fused_kernels" for torch.compile, without importing torch._dynamo, which takes a second.

torch looks for backends among the entry points of installed packages, when a name is first asked for. This repository
is not installed, so a finder of importlib.metadata tells of the entry point. Where torch._dynamo is loaded already, its
search may be over, and the backend is registered directly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import Distribution, DistributionFinder

NAME = "fused_kernels"
PACKAGE = "fused-kernels-backend"


class Package(Distribution):
    """Stands for a package that is not installed."""

    def read_text(self, filename: str) -> str | None:
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0\n",
            "entry_points.txt": f"[torch_dynamo_backends]\n{NAME} = kernels.compiler:backend\n",
        }.get(filename)

    def locate_file(self, path):
        raise FileNotFoundError(path)


class Finder(DistributionFinder):
    """Finds that package, and no module."""

    def find_spec(self, name, path=None, target=None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> list[Distribution]:
        return [Package()] if context is None or context.name in (None, PACKAGE) else []


def register(backend: Callable) -> None:
    """Have torch.compile know the backend by its name."""
    if "torch._dynamo" not in sys.modules:
        if not any(isinstance(finder, Finder) for finder in sys.meta_path):
            sys.meta_path.append(Finder())
        return
    from torch._dynamo import list_backends, register_backend

    if NAME not in list_backends(exclude_tags=()):
        register_backend(backend, name=NAME)
