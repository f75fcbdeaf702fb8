"""What a public function does: find the backend, and call its overload at the price of PyTorch's own calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import checks, core
from .address import with_memory
from .declaration import Declaration
from .loader import Loader
from .refusals import autocasts, cast, refuse_gradients, refuse_unbatched, refusing
from .scalars import with_tensors

# What torch.func says of an op whose kernel it cannot wrap, and where it says so.
REFUSED_BY_TORCH = {
    "setup_context": "torch.func here",
    "Batching rule not implemented": "torch.func.vmap",
    "output has alias annotations": "torch.func.functionalize",
}


class PublicFunction:
    """One form of an op, functional or in place, as its public functions call it."""

    def __init__(self, declaration: Declaration, loader: Loader, form: str) -> None:
        self._op, self._loader, self._form = declaration, loader, form
        self._signature = declaration.forms[form]
        self._scalars = self._signature.scalars
        self._overloads = {backend: declaration.overload(backend, form) for backend in declaration.backends}
        self._as_eager = self._eager  # one object, to know it by
        self._on_gpu: dict[str, Callable] = {}  # backend → what is called

    def __call__(self, backend: str, *arguments):
        if is_compiling():
            return self._traced(backend, arguments)
        first = arguments[0]
        if type(first) is list and first:
            first = first[0]
        call = self._on_gpu.get(backend) if getattr(first, "is_cuda", False) and type(backend) is str else None
        if call is None:
            call = self._resolve(backend, arguments)
        try:
            if self._scalars and call is not self._as_eager:
                arguments = with_tensors(self._scalars, arguments)
            return call(*arguments)
        except Exception as error:
            self._explain(arguments, error)
            raise

    def chosen(self, backend: str, *arguments) -> str:
        """The backend that is meant where "auto" may be given. Raises ValueError for one that is unknown, RuntimeError
        for one that the op has no kernel for."""
        self._refuse_unknown(backend)
        if backend == "auto":
            first = self._signature.first_tensor(arguments)
            if first.is_meta:  # any kernel's overload gives the shapes; eager code may look at values
                return self._op.backends[0]
            if not first.is_cuda:
                return self._op.auto_on_cpu
            return self._op.auto(*arguments) if callable(self._op.auto) else self._op.auto
        if backend != "eager" and backend not in self._op.backends:
            raise RuntimeError(f'backend="{backend}" does not run here: {self._op.name} has no such kernel')
        return backend

    def _refuse_unknown(self, backend: object) -> None:
        known = ("auto", "eager", "triton", "cuda") + ("cpp",) * ("cpp" in self._op.backends)
        if not isinstance(backend, str) or backend not in known:
            raise ValueError(f"backend must be one of {', '.join(known)}; got {backend!r}")

    def _resolve(self, backend: str, arguments: tuple) -> Callable:
        """What this backend is for these arguments; for CUDA tensors it is kept."""
        op, first = self._op, self._signature.first_tensor(arguments)
        self._refuse_unknown(backend)
        if backend == "auto" and callable(op.auto) and first.is_cuda:
            self._on_gpu[backend] = self._choose_and_call
            return self._choose_and_call
        chosen = self.chosen(backend, *arguments)
        if chosen == "eager":
            call = self._as_eager
        else:
            in_core, overload = self._loader.load(chosen, first.device.type), self._overloads[chosen]
            call = core.from_python(overload) if in_core else refusing(op, self._form, overload)
        if first.is_cuda:
            self._on_gpu[backend] = call
        return call

    def _choose_and_call(self, *arguments):
        """What "auto" is for CUDA tensors where the arguments decide."""
        backend = self._op.auto(*arguments)
        call = self._on_gpu.get(backend)
        return (self._resolve(backend, arguments) if call is None else call)(*arguments)

    def _traced(self, backend: str, arguments: tuple):
        """While torch.compile or torch.export traces: the overload alone, which loads what it needs when it runs."""
        backend = self.chosen(backend, *arguments)
        if backend == "eager":
            return self._eager(*arguments)
        arguments = cast(self._signature, arguments)
        refuse_gradients(self._op, self._form, arguments)
        if self._scalars:
            # As a number a scalar would be a constant of the graph, and every other value a compilation. As a tensor on
            # the device a captured graph sees it change, too.
            arguments, device = list(arguments), self._signature.first_tensor(arguments).device
            for i in self._scalars:
                if isinstance(arguments[i], Real):
                    arguments[i] = torch.ones((), dtype=torch.float64, device=device) * arguments[i]
        return self._overloads[backend](*arguments)

    def _eager(self, *arguments):
        first = self._signature.first_tensor(arguments)
        if autocasts(first):
            arguments = cast(self._signature, arguments)
            with torch.autocast(first.device.type, enabled=False):  # whose own dtype for an operator may be another
                return self._eager(*arguments)
        op, signature = self._op, self._signature
        signature.check(arguments)
        if (signature.mutated or not op.gradients) and checks.has_no_values(first) and not _is_traced():
            refuse_gradients(op, self._form, arguments)
            return op.made_of_shapes(self._form, arguments)
        if not is_compiling():
            arguments = [
                float(value) if i in self._scalars and not isinstance(value, Tensor)
                else value if i in signature.mutated
                else list(map(with_memory, value)) if isinstance(value, list)
                else with_memory(value)
                for i, value in enumerate(signature.with_plain(arguments))
            ]
        if not signature.mutated:
            return op.eager(*arguments)
        refuse_gradients(op, self._form, arguments)
        if not checks.has_no_values(first):  # a traced graph has no addresses, and writes last
            signature.check_written(arguments)
            refuse_unbatched(op, self._form, arguments)
            arguments = signature.as_before(arguments, op.elementwise)
        return (op.eager_in_place if self._form else op.eager)(*arguments)

    def _explain(self, arguments: Sequence, error: Exception) -> None:
        """Raise with the declaration's own message if an argument is to blame for the error."""
        self._signature.check(cast(self._signature, arguments))
        self._signature.check_written(arguments)
        if "forward AD" in str(error):  # of an operator of PyTorch's that the reference calls
            raise RuntimeError(
                f'{self._signature.name} has no forward-mode derivative here, on backend="eager" either: use reverse '
                "mode, torch.func.jacrev"
            ) from None
        for words, where in REFUSED_BY_TORCH.items():
            if words in str(error):
                functional = f"call {self._op.name}, or " * (self._form == "_")
                raise RuntimeError(
                    f'{self._signature.name} does not work under {where}: {functional}use backend="eager"'
                ) from None


def _is_traced() -> bool:
    """Whether what is done with tensors becomes a graph."""
    return is_compiling() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
