"""add_relu against eager, on every backend that this machine has."""

import torch

from kernels.contract_tests import PointwiseContract


class TestAddRelu(PointwiseContract):
    op = "add_relu"

    def backward_arguments(self, call):
        out = torch.relu(call.tensors[0] + call.tensors[1])
        return torch.randn_like(out), out, True, True
