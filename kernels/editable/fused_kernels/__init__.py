"""kernels/ under the name by which pip installs it: `pip install -e .` and make put the folder above on the path."""

import importlib.util
import sys
from pathlib import Path

folder = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location(
    __name__, folder / "__init__.py", submodule_search_locations=[str(folder)]
)
sys.modules[__name__] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
