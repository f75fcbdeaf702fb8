"""The name "fused_kernels" for torch.compile, without importing torch._dynamo, which takes a second.

torch looks for backends among the entry points of installed packages, when a name is first asked for. Installed by pip,
this package has that entry point. A checkout is not installed, so a finder of importlib.metadata tells of the entry
point, before one that is installed beside it. Where torch._dynamo is loaded already, its search may be over, and the
backend is registered directly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution

from ..runtime import PACKAGE

NAME = "fused_kernels"
VALUE = f"{PACKAGE}.compiler:backend"
INSTALLED = "fused-kernels"  # pyproject.toml's name
STAND_IN = "fused-kernels-backend"


class Package(Distribution):
    """Stands for a package that is not installed."""

    def read_text(self, filename: str) -> str | None:
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {STAND_IN}\nVersion: 0\n",
            "entry_points.txt": f"[torch_dynamo_backends]\n{NAME} = {VALUE}\n",
        }.get(filename)

    def locate_file(self, path):
        raise FileNotFoundError(path)


class Finder(DistributionFinder):
    """Finds that package, and no module."""

    def find_spec(self, name, path=None, target=None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> list[Distribution]:
        return [Package()] if context is None or context.name in (None, STAND_IN) else []


def register(backend: Callable) -> None:
    """Have torch.compile know the backend by its name."""
    if is_installed():
        return
    if "torch._dynamo" not in sys.modules:
        if not any(isinstance(finder, Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, Finder())
        return
    from torch._dynamo.backends import registry

    registry.list_backends(exclude_tags=())  # its search, whose entry point would come in this backend's place
    if NAME not in registry._COMPILER_FNS:
        registry.register_backend(backend, name=NAME)


def is_installed() -> bool:
    """Whether an installed package has the entry point, and this is that package."""
    try:
        points = distribution(INSTALLED).entry_points
    except PackageNotFoundError:
        return False
    return any(point.value == VALUE for point in points)
