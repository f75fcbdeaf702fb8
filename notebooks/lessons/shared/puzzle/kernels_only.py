"""A puzzle is solved by a kernel: torch may allocate and view in it, and computes nothing.

An answer that calls eager beside an empty launch gives the right values, and so does one that computes on the host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import runtime

# Views are recognised by their schema. A clone is what contiguous() makes: it moves values, and makes none.
ALLOCATIONS = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "zeros", "zeros_like", "new_zeros", "zero_", "full", "full_like", "new_full", "fill_",
    "clone", "detach", "alias", "resolve_conj", "resolve_neg",
}
# What reads a tensor's values on the host without an operator.
READS = {"numpy", "tolist", "item", "__array__", "__dlpack__", "__bool__", "__int__", "__float__", "__index__"}
# What gives its address away, with which NumPy computes as well.
ADDRESSES = {"data_ptr", "untyped_storage", "storage"}


class Computes(AssertionError):
    """torch, or the host, computed what a kernel was to compute."""


class _Operators(TorchDispatchMode):
    def __init__(self, also: Collection[str] = ()):
        super().__init__()
        self.also, self.paused = also, False

    @contextmanager
    def pause(self) -> Iterator[None]:
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        name = operator._schema.name.removeprefix("aten::")
        if not self.paused and name not in self.also and not _allowed(operator):
            raise Computes(f"torch's {name} was called: here a kernel computes, and torch only allocates and views")
        return operator(*arguments, **(named or {}))


class _Functions(TorchFunctionMode):
    def __init__(self, operators: _Operators):
        super().__init__()
        self.operators = operators

    def __torch_function__(self, function, types, arguments=(), named=None):
        name = getattr(function, "__name__", "")
        if not self.operators.paused and name in READS:
            raise Computes(f"Tensor.{name} reads values on the host: on a GPU it waits for all work before it")
        if not self.operators.paused and name in ADDRESSES:
            raise Computes(f"Tensor.{name}: here a kernel gets the tensor itself, and nothing else its address")
        # The guard makes an allocation in its own way, with operators of its own.
        with self.operators.pause() if name in ALLOCATIONS else nullcontext():
            return function(*arguments, **(named or {}))


def _allowed(operator: torch._ops.OpOverload) -> bool:
    schema = operator._schema
    if schema.name.removeprefix("aten::").partition(".")[0] in ALLOCATIONS:
        return True
    is_view = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    return is_view or schema.name.startswith("profiler::")


@contextmanager
def kernels_only(also: Collection[str] = ()) -> Iterator[None]:
    """In here torch may allocate and view tensors; what else it is asked for raises Computes, launches aside.

    also: names of operators that it may call, such as "sort"."""
    operators = _Operators(also)
    with ExitStack() as stack:
        for owner, name in _of_triton():
            method = getattr(owner, name)

            def uncounted(self, *arguments, method=method, **named):
                with operators.pause():
                    return method(self, *arguments, **named)

            stack.enter_context(mock.patch.object(owner, name, uncounted))
        stack.enter_context(_Functions(operators))
        stack.enter_context(operators)
        yield


def _of_triton() -> list[tuple[type, str]]:
    """(class, method) of Triton's that ask a tensor for its address: a launch, which copies it in the interpreter, and
    what makes a descriptor."""
    mode = runtime.triton_mode()
    if mode == "interpreted":
        from triton.runtime.interpreter import GridExecutor as Launcher
    elif mode == "compiled":
        from triton.runtime.jit import JITFunction as Launcher
    else:
        return []
    from triton.tools.tensor_descriptor import TensorDescriptor

    return [(Launcher, "__call__" if mode == "interpreted" else "run"), (TensorDescriptor, "__post_init__")]
