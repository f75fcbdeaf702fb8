"""On a GPU the host must not wait in an answer in PyTorch, and what it makes must stay small.

The answer is called once more, with tensors of the device `meta`, which have shapes and no values, and say that they
are a GPU's. What the host wants to know of a value fails there, as it waits on a GPU; whether this machine has a GPU
does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kernels.check.cases import Call
from lessons.shared.puzzle.kernels_only import READS

MAKE = {"tensor", "as_tensor", "asarray", "new_tensor"}  # a tensor of what the host has
SHOW = {"__repr__", "__format__", "__str__"}
# Operators that make the host wait although their tags do not say so.
WAIT = {"_coalesce", "coalesce", "histc"}


@dataclass(frozen=True)
class Quiet:
    """What an answer in PyTorch may not do where the host must not wait.

    largest: call → the most elements of a tensor that is made on the way; None: as many as it likes.
    traced: traced(answer, *arguments) is what is looked at; None: the answer itself.
    hint: what to think of where a tensor is too large.
    """

    largest: Callable[[Call], int] | None = None
    traced: Callable | None = None
    hint: str = ""


class Waits(AssertionError):
    """On a GPU the host would wait."""


class TooLarge(AssertionError):
    """A tensor that the puzzle is there to avoid."""


def gradient_of(output: Tensor, leaf: Tensor, grad: Tensor, name: str, keep: bool = False) -> Tensor:
    """leaf's gradient, sparse if it was made so; keep: the graph, for another leaf's. AssertionError, by the leaf's
    name, if none reaches it."""
    gradient = None
    if output.requires_grad:
        (gradient,) = torch.autograd.grad(output, leaf, grad, allow_unused=True, retain_graph=keep)
    if gradient is None:
        raise AssertionError(
            f"no gradient reaches {name}: detach, .data, no_grad or a tensor made anew cuts the graph there"
        )
    return gradient


def look(rules: Quiet, answer: Callable, call: Call) -> None:
    """Run the answer on shapes alone. Raises Waits or TooLarge, naming the operator and the answer's line."""
    most = None if rules.largest is None else rules.largest(call)
    on_meta = call.map(lambda tensor: tensor.to("meta"))
    run = answer if rules.traced is None else lambda *arguments: rules.traced(answer, *arguments)
    with ExitStack() as stack:
        stack.enter_context(mock.patch("torch.cuda.synchronize", _synchronize))
        stack.enter_context(_Functions())
        stack.enter_context(_Operators(most))
        try:
            run(*on_meta.arguments())
        except TooLarge as error:
            if rules.hint:
                raise TooLarge(f"{error}\nHint: {rules.hint}") from error
            raise
        except AssertionError:
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0][:200]
            failed = "right, but with a GPU's tensors, whose values the host does not have, it fails"
            raise Waits(f"{failed}: {text}") from error


class _Operators(TorchDispatchMode):
    def __init__(self, most: int | None):
        super().__init__()
        self.most = most

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        named = named or {}
        name = operator._schema.name.removeprefix("aten::")
        inputs = [value for value in tree_leaves((arguments, named)) if isinstance(value, Tensor)]
        if reason := _reason(name, operator, arguments, named, inputs):
            raise Waits(f"right, but on a GPU the host waits in {name}: {reason}")
        if name not in ("_to_copy", "copy_") and _of_both(inputs):
            raise Waits(f"right, but on a GPU {name} has a tensor that was made on the CPU: give that one device=")
        outputs = _run(operator, arguments, named)
        for out in tree_leaves(outputs) if self.most is not None else ():
            new = isinstance(out, Tensor) and not out.is_sparse and not any(_is_view(out, value) for value in inputs)
            if new and out.numel() > self.most:
                raise TooLarge(f"right, but {name} makes a tensor of {list(out.shape)}")
        return outputs


def _of_both(inputs: list[Tensor]) -> bool:
    """Whether some are the GPU's and some, with more than one number, the CPU's; a number goes along with a launch."""
    return any(value.is_meta for value in inputs) and any(not value.is_meta and value.dim() for value in inputs)


def _is_view(out: Tensor, value: Tensor) -> bool:
    return not value.is_sparse and out.untyped_storage()._cdata == value.untyped_storage()._cdata


def _reason(name: str, operator, arguments: tuple, named: dict, inputs: list[Tensor]) -> str:
    """Why the host waits in this call; "" where it does not."""
    if name in ("_to_copy", "copy_"):
        device = named.get("device")
        source, to = (arguments[1], arguments[0].device) if name == "copy_" else (arguments[0], device or "")
        quiet = named.get("non_blocking") or (name == "copy_" and len(arguments) > 2 and arguments[2])
        if not to or torch.device(to).type == source.device.type:
            return ""
        if torch.device(to).type == "cpu":
            return "the copy to the host is complete when all work before it is done"
        return "" if quiet else "a copy to the GPU from ordinary memory, without non_blocking, waits until it is done"
    if not any(value.is_meta for value in inputs):
        return ""
    if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
        chosen = arguments[1]
        masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in chosen)
        filled = name != "index" and arguments[2].dim() == 0  # with one number: masked_fill
        return "a boolean mask: only the GPU knows how many elements it chooses" if masks and not filled else ""
    if torch.Tag.data_dependent_output in operator.tags:
        return "it reads a number of the GPU, which must have computed it"
    if torch.Tag.dynamic_output_shape in operator.tags or name in WAIT:
        return "only the GPU knows how large its result is"
    return ""


GPU = torch.device("cuda", 0)
# What a tensor of meta says of itself in here.
_SAYS = {
    Tensor.device.__get__: GPU,
    Tensor.is_meta.__get__: False,
    Tensor.is_cuda.__get__: True,
    Tensor.is_cpu.__get__: False,
    Tensor.get_device: 0,
}


def _meta_for_gpu(value: object) -> object:
    """meta for a GPU, as a device or as its name."""
    if isinstance(value, torch.device):
        return torch.device("meta") if value.type == "cuda" else value
    return "meta" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class _Functions(TorchFunctionMode):
    """What reaches no operator: reading for NumPy, lists and print; making a tensor of a list."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        name = getattr(function, "__name__", "")
        if function in _SAYS and arguments[0].is_meta:
            return _SAYS[function]
        arguments, named = tree_map(_meta_for_gpu, (arguments, named))
        first = arguments[0] if arguments else None
        on_gpu = isinstance(first, Tensor) and first.is_meta
        if on_gpu and name in READS | SHOW:
            what = "printing" if name in SHOW else f"Tensor.{name}"
            raise Waits(f"right, but {what} reads values on the host: on a GPU it waits for all work before it")
        if name in MAKE:
            data = arguments[name == "new_tensor"] if len(arguments) > (name == "new_tensor") else named.get("data")
            device = named.get("device") or (first.device if name == "new_tensor" else None)
            to_gpu = device is not None and torch.device(device).type == "meta"
            if _of_numbers(data):
                raise Waits(f"right, but {name} reads each number of a list on the host: the GPU must have computed it")
            if to_gpu and not isinstance(data, Tensor):
                raise Waits(f"right, but {name} copies from the host to the GPU, and the host waits until that is done")
        if on_gpu and name in ("__getitem__", "__setitem__"):
            chosen = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            if any(isinstance(index, list) for index in chosen):
                raise Waits("right, but an index that is a list is copied to the GPU, and the host waits for that")
        return function(*arguments, **named)


def _of_numbers(data: object) -> bool:
    """Whether it is a list in which a tensor of the GPU stands for a number."""
    leaves = () if isinstance(data, Tensor) else tree_leaves(data)
    return any(isinstance(value, Tensor) and value.is_meta for value in leaves)


def _run(operator, arguments: tuple, named: dict):
    """The operator's result; where meta has no kernel for it, as for most on sparse tensors, that of empty ones."""
    try:
        return operator(*arguments, **named)
    except NotImplementedError:
        if operator._schema.name.endswith("_"):
            return arguments[0]
    arguments, named = tree_map(lambda value: _empty(value) if isinstance(value, Tensor) else value, (arguments, named))
    result = operator(*arguments, **named)
    return tree_map(lambda value: value.to("meta") if isinstance(value, Tensor) else value, result)


def _empty(tensor: Tensor) -> Tensor:
    """On the CPU, of its shape: without an element if it is sparse, else of zeros."""
    if tensor.is_sparse:
        return torch.sparse_coo_tensor(tuple(tensor.shape), dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _synchronize(*arguments) -> None:
    raise Waits("right, but torch.cuda.synchronize waits for all work of the GPU")
