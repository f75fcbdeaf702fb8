"""Whether a call of a module does more than its class says."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


def has_hooks(part: nn.Module) -> bool:
    """Whether a module has hooks, of its own or of all modules, or a forward of its own."""
    if _has_any_global_hook():
        return True
    hooks = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
    return bool(hooks) or "forward" in part.__dict__
