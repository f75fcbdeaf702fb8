"""Which of an op's overloads the C++ core runs, and what must be loaded for that: on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from .. import runtime
from . import core
from .declaration import Declaration

_loading = threading.RLock()


class Loader:
    """Loads what runs one op's overloads.

    without_core: called as without_core(backend, error) where CUDA tensors come and the core cannot be built.
    """

    def __init__(self, declaration: Declaration, without_core: Callable[[str, RuntimeError], None]) -> None:
        self._op, self._without_core = declaration, without_core
        self._runs: dict[tuple[str, str], bool] = {}  # (backend, device type) → whether the core runs it

    def require(self, backend: str, device_type: str) -> None:
        """Raise RuntimeError, with what is missing and how to get it, unless this machine runs the backend."""
        if (backend, device_type) == ("cuda", "cpu"):
            if core.runs_on_host():
                return
        elif device_type == "meta" or self._runs.get((backend, device_type)):  # on meta nothing runs
            return
        what = backend
        if backend == "cuda" and (self._op.generates or self._op.by_nvcc):
            what = "nvrtc" if self._op.generates else "nvcc"
        if reason := runtime.why_not(what, device_type):
            raise RuntimeError(f'backend="{backend}" does not run here: {reason}')

    def load(self, backend: str, device_type: str) -> bool:
        """Whether the core runs this backend's overloads for tensors on such devices; loads it on first use. Raises as
        `require` does where Python does not run them either."""
        key = backend, device_type
        in_core = self._runs.get(key)
        if key == ("cuda", "cpu") and not core.runs_on_host():
            in_core = False
        elif in_core is None:
            with _loading:
                in_core = self._runs[key] if key in self._runs else self._load(backend, device_type)
        if not in_core:
            self.require(backend, device_type)
        return in_core

    def _load(self, backend: str, device_type: str) -> bool:
        if (backend, device_type) == ("cuda", "cpu"):
            if self._generates(backend):
                return False
            core.load_core()
            self.declare(backend, device_type, str(core.load_op_for_host(self._op.folder)))
        elif backend == "cpp" and device_type == "cpu":
            self.require(backend, device_type)
            core.load_core()
            self.declare(backend, device_type, str(core.load_op_for_cpu(self._op.folder)))
        elif device_type != "cuda" or backend == "cpp":
            return False
        elif self._generates(backend):
            self.require(backend, device_type)
            core.load_core()
            self.declare(backend, device_type, "")
        elif backend == "cuda":
            if not core.op_is_built(self._op.folder, by_nvcc=self._op.by_nvcc):
                self.require(backend, device_type)
            core.load_core()
            self.declare(backend, device_type, str(core.load_op(self._op.folder, by_nvcc=self._op.by_nvcc)))
        else:
            try:
                core.load_core()
            except RuntimeError as error:
                self.require(backend, device_type)
                self._without_core(backend, error)
                self._runs[backend, device_type] = False
                return False
            self.declare(backend, device_type, "")
        return True

    def _generates(self, backend: str) -> bool:
        """Whether the backend's source is CUDA's and generated, which takes NVRTC and no nvcc."""
        return backend == "cuda" and self._op.generates

    def declare(self, backend: str, device_type: str, library: str) -> None:
        """Tell the core of this op on a backend, for tensors on devices of this type. `library`: the op's cuda.cu.

        One line an entry, its name and its values with tabs between them: core.cpp's `declare` reads each by its name.
        (Inside of torch.func no dispatcher op takes a dict.) Arguments go by their positions in the functional form's
        schema, outputs by -1, -2, …; an entry that may be absent has no value or one.
        """
        op, functional = self._op, self._op.forms[""]
        position = {name: i for i, name in enumerate(functional.names)}
        position |= {name: -1 - i for i, name in enumerate(op.outputs)}
        entries = {
            "op": [op.name],
            "backend": [backend],
            "device": [device_type],
            "library": [library] * bool(library),
            "gradients": [position[name] for name in op.gradients],
            "mutated": [position[name] for name in op.mutated],
            "in_place": op.forms["_"].mutated if "_" in op.forms else [],
            "elementwise": [1] * op.elementwise,
            "reports": [1] * op.reports,
            "saves_by": [position[op.saves.argument]] if op.saves.argument else [],
            **{f"saves {value}": [position[name] for name in names] for value, names in op.saves.saves.items()},
            **{f"wanted {position[of]}": [position[name] for name in names] for of, names in op.saves.wanted.items()},
            "shapes": [position[name] for name in op.shapes],
            "saved": [position[name] for name in op.saved],
            "others": [position[argument.name] for argument in op.others],
            "scalars": functional.scalars,
            "ragged": functional.ragged,
            "backward_scalars": op.forms["backward"].scalars if op.gradients else [],
            "backward_ragged": op.forms[op.backward_form].ragged if op.gradients else [],
            "undifferentiable": op.undifferentiable,
            "backward": [op.backward_of[backend]],
            "computed_backward": [op.forms[op.backward_form].name] if op.gradients else [],
        }
        lines = ("\t".join(map(str, (name, *values))) for name, values in entries.items())
        torch.ops.fused_kernels._declare("\n".join(lines))
        self._runs[backend, device_type] = True
