"""A second name for this package in one process: its modules are those of the first, so that its ops are there once."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType


class Alias(MetaPathFinder, Loader):
    """Finds name.… where of.… is."""

    def __init__(self, name: str, of: str) -> None:
        self.name, self.of = name, of

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{self.name}."):
            return None
        spec = importlib.util.find_spec(self._first(fullname))
        if spec is None:
            return None
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=spec.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._first(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state  # the import system has put the second name's in its place

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        return importlib.util.find_spec(self._first(fullname)).loader.get_code(self._first(fullname))

    def _first(self, fullname: str) -> str:
        return self.of + fullname.removeprefix(self.name)


def make_alias(name: str, of: str) -> None:
    """From here on importing `name` or a module of it gives `of`, which is imported, or that module of it."""
    for loaded in [loaded for loaded in sys.modules if loaded.startswith(f"{name}.")]:
        del sys.modules[loaded]
    sys.modules[name] = sys.modules[of]
    sys.meta_path.insert(0, Alias(name, of))
