"""For the ops' tests."""

import pytest
import torch

# pytest explains the asserts of test files and conftests only; the contract's stand in a package of their own.
pytest.register_assert_rewrite("kernels.check.contract")
# Test processes run beside each other on few cores: threads of one would wait for those of the other.
torch.set_num_threads(1)
