"""For the ops' tests."""

import pytest
import torch

# pytest explains the asserts of test files and conftests only; the contract's stand in a package of their own.
pytest.register_assert_rewrite("kernels.check.contract")
# Test processes run beside each other on few cores: threads of one would wait for those of the other.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Where Triton is interpreted, those Triton tests are slow ones that SLOW_INTERPRETED of their file names: by how
    their names begin, a tuple, or True for all."""
    from kernels import runtime

    if runtime.triton_mode() != "interpreted":
        return
    for item in items:
        parameters = item.name.rstrip("]").replace("[", "-").split("-")
        slow = getattr(item.module, "SLOW_INTERPRETED", ())
        if "triton" in parameters and item.name.startswith("" if slow is True else slow):
            item.add_marker(pytest.mark.slow)
