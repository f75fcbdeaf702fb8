"""Buffers that follow from numbers which a module knows, so that no state_dict has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Derived(nn.Module):
    """A module with such buffers, int64, which lie where its parameter does.

    Whatever gives the parameter new memory (to_empty, nn.utils.skip_init, load_state_dict with assign=True where it is
    on the device meta) leaves a buffer that is not in a state_dict unwritten, or behind. Here they are written anew.
    """

    def derive(self, parameter: str, **numbers: Sequence[int]) -> None:
        """Have buffers of these names and numbers, beside the parameter of this name."""
        self._derived = parameter, {name: [*values] for name, values in numbers.items()}
        for name in numbers:
            self.register_buffer(name, None, persistent=False)
        self._write_derived()

    def _write_derived(self) -> None:
        parameter, numbers = self._derived
        device = getattr(self, parameter).device
        for name, values in numbers.items():
            tensor, there = torch.tensor(values, dtype=torch.int64, device="cpu"), self._buffers[name]
            if there is not None and (there.device, there.dtype) == (device, tensor.dtype) and _may_be_written(there):
                there.copy_(tensor)  # the same memory: a CUDA graph may know it
            else:
                self._buffers[name] = tensor.to(device)

    def _apply(self, fn, recurse: bool = True) -> Derived:
        super()._apply(fn, recurse)
        self._write_derived()
        return self

    def _load_from_state_dict(self, *arguments) -> None:
        super()._load_from_state_dict(*arguments)
        self._write_derived()


def _may_be_written(tensor: torch.Tensor) -> bool:
    """Not what was made under torch.inference_mode, outside of it."""
    return not tensor.is_inference() or torch.is_inference_mode_enabled()
