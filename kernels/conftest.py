"""For the ops' tests."""

import pytest
import torch

# pytest explains the asserts of test files and conftests only; the contract's stand in a package of their own.
pytest.register_assert_rewrite("kernels.check.contract")
# Test processes run beside each other on few cores: threads of one would wait for those of the other.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """The contract's tests are of the backends that an op has code for.

    Where Triton is interpreted, the Triton tests of a file that sets SLOW_INTERPRETED = True are slow ones.
    """
    from kernels import runtime

    none = [item for item in items if _has_no_kernel(item)]
    config.hook.pytest_deselected(items=none)
    items[:] = [item for item in items if item not in none]
    if runtime.triton_mode() != "interpreted":
        return
    for item in items:
        parameters = item.name.rstrip("]").replace("[", "-").split("-")
        if getattr(item.module, "SLOW_INTERPRETED", False) and "triton" in parameters:
            item.add_marker(pytest.mark.slow)


def _has_no_kernel(item) -> bool:
    """Whether this is a test of the contract on a backend that the op has no code for."""
    from kernels import dispatch
    from kernels.check.contract import Contract

    backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")
    if backend is None or not (item.cls and issubclass(item.cls, Contract)) or item.cls.op not in dispatch.names():
        return False
    return backend.split()[0] not in ("eager", *dispatch.find(item.cls.op).backends)
