"""For the ops' tests."""

import functools
import sys

import pytest
import torch

# pytest explains the asserts of test files and conftests only; the contract's stand in a package of their own.
pytest.register_assert_rewrite("kernels.check.contract")
# Test processes run beside each other on few cores: threads of one would wait for those of the other.
torch.set_num_threads(1)


def pytest_runtest_setup():
    if "triton.runtime.interpreter" in sys.modules:
        from .check import faster

        faster.install()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """The contract's tests are of the backends that an op has code for.

    Where Triton is interpreted, those Triton tests are slow ones that SLOW_INTERPRETED of their file names: by how
    their names begin, a tuple, or True for all. So are those of another backend's gradients that Triton computes.
    """
    from . import runtime

    none = [item for item in items if _has_no_kernel(item)]
    config.hook.pytest_deselected(items=none)
    items[:] = [item for item in items if item not in none]
    if runtime.triton_mode() != "interpreted":
        return
    for item in items:
        parameters = item.name.rstrip("]").replace("[", "-").split("-")
        slow = getattr(item.module, "SLOW_INTERPRETED", ())
        triton = "triton" in parameters or ("grad" in item.name and _has_tritons_backward(item))
        if triton and item.name.startswith("" if slow is True else slow):
            item.add_marker(pytest.mark.slow)


def _op_and_backend(item):
    """The op's declaration and the backend of a test of the contract; (None, "") for any other test."""
    from .check.contract import Contract

    backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")
    if backend is None or not (item.cls and issubclass(item.cls, Contract)) or not (op := _declared(item.cls.op)):
        return None, ""
    return op, backend.split()[0]


@functools.cache
def _declared(name: str):
    from . import dispatch

    return dispatch.find(name) if name in dispatch.names() else None


def _has_no_kernel(item) -> bool:
    """Whether this is a test of the contract on a backend that the op has no code for."""
    op, backend = _op_and_backend(item)
    return op is not None and backend not in ("eager", *op.backends)


def _has_tritons_backward(item) -> bool:
    op, backend = _op_and_backend(item)
    if op is None or not op.gradients or not {backend, "triton"} <= {*op.backends}:
        return False
    return op.overload(backend, "backward") is op.overload("triton", "backward")
