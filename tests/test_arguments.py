"""What an argument may be: ops × forms × backends × {torch.func, negative, zero, meta, …}, from the ops' specs.

In each cell there comes out what plain eager PyTorch gives, or the op refuses: by its name, with what to do instead. A
new op edits no list here. `pytest -s` prints the refusals.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import kernels
from kernels import dispatch, runtime
from kernels.check import Call, Case, check
from kernels.check import spec as specs
from kernels.check.comparison import as_tuple
from kernels.dispatch import allocation, plan
from kernels.dispatch.address import overlap

DEVICE = runtime.device()
FORMS = [*specs.names(), *(f"{name}_" for name in dispatch.names() if "_" in dispatch.find(name).forms)]


def declared(name: str):
    return dispatch.find(name if name in dispatch.names() else name.removesuffix("_"))


def backends(name: str) -> list[str]:
    """Those that run here."""
    return ["eager", *(b for b in declared(name).backends if not runtime.why_not(b, DEVICE.type))]


CELLS = [(name, backend) for name in FORMS for backend in backends(name)]
WRITING = [cell for cell in CELLS if specs.spec_of(cell[0]).mutated]


class Cell:
    """A form of an op on a backend, and a call of it."""

    def __init__(self, name: str, backend: str) -> None:
        self.name, self.backend, self.spec, self.op = name, backend, specs.spec_of(name), declared(name)
        self.call: Call = next(iter(self.spec.calls(Case((2, 3)), DEVICE)))
        self.leaves = self.call.leaves()
        for leaf in filter(Tensor.is_floating_point, self.leaves):
            leaf.copy_(leaf.bfloat16())  # so that no operand of a tensor core is rounded
        self.names = [leaf.partition("[")[0] for leaf in self.spec.leaf_names(self.call)]

    def __call__(self, *leaves: Tensor, backend: str = "") -> tuple[Tensor, ...]:
        """Called with these leaves: what it returns, and what it writes."""
        arguments, backend = self.call.with_leaves(leaves).arguments(), backend or self.backend
        if public := getattr(kernels, self.name, None):
            returned = public(*arguments, backend=backend)
        else:
            returned = self.op.call(backend, *self.spec.overload(arguments))
        written = [leaf for leaf, name in zip(leaves, self.names, strict=True) if name in self.spec.mutated]
        return tuple(as_tuple(() if returned is None else returned)) + tuple(written)

    def copies(self) -> list[Tensor]:
        return [leaf.clone() for leaf in self.leaves]

    def with_one(self, i: int, leaf: Tensor) -> list[Tensor]:
        return [leaf if k == i else copy for k, copy in enumerate(self.copies())]

    def positions(self, where: Callable[[str, Tensor], bool]) -> list[int]:
        pairs = zip(self.names, self.leaves, strict=True)
        return [i for i, (name, leaf) in enumerate(pairs) if where(name, leaf)]

    @property
    def floating(self) -> list[int]:
        return self.positions(lambda name, leaf: leaf.is_floating_point() and leaf.numel() > 0)

    @property
    def differentiable(self) -> list[int]:
        return self.positions(lambda name, leaf: name in self.op.gradients)

    @property
    def has_gradient(self) -> bool:
        return bool(self.op.gradients) and not self.spec.mutated

    def may_refuse(self, how: str) -> bool:
        """The reference may refuse what has no gradient, a read argument of what it writes that alone is batched, and
        forward mode where PyTorch's own embedding_bag has none."""
        if self.backend != "eager":
            return True
        source = inspect.getsource(inspect.getmodule(self.spec.reference))
        bags = re.search(r"embedding_bags?\(", source)  # PyTorch's, or what embedding_bags' reference makes of it
        return bool(self.spec.mutated) if how == "vmap" else not self.has_gradient or (how == "jacfwd" and bool(bags))

    @property
    def written(self) -> list[int]:
        return self.positions(lambda name, leaf: name in self.spec.mutated and leaf.numel() > 0)


def floats(values: tuple[Tensor, ...]) -> list[Tensor]:
    return [value for value in values if value.is_floating_point()]


# Four products, and what one hands to the next is rounded to tf32: that its operands are numbers of tf32 does not help.
# Sums that cancel are off by 3 % then; test_pair holds the result to the bits of dlrm_forward.
RTOL = {("dlrm_forward_kept", "cuda"): 5e-2}


def assert_same(actual, want, cell: Cell | None = None) -> None:
    rtol = RTOL.get((cell.name, cell.backend), 1e-4) if cell else 1e-4
    assert len(actual) == len(want) > 0
    for a, b in zip(actual, want, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 10, equal_nan=True)


REFUSALS: dict[tuple[str, str, str], str] = {}
INSTEAD = r'use backend="eager"|use reverse mode, torch\.func\.jacrev|call \w+, or|torch\.no_grad\(\)|batch \w+ too'


@pytest.fixture(scope="module", autouse=True)
def _refusals_are_told():
    yield
    for (name, backend, how), message in sorted(REFUSALS.items()):
        print(f"{name:24} {backend:6} {how:12} {message}")


@functools.cache
def cell_of(name: str, backend: str) -> Cell:
    return Cell(name, backend)


every_cell = pytest.mark.parametrize("cell", CELLS, ids="-".join)


# ---------------------------------------------------------------------------------------------------------- torch.func


@every_cell
@pytest.mark.parametrize("how", ["vmap", "grad", "vmap of grad", "jacrev", "jacfwd"])
def test_a_transform_of_torch_func(cell, how):
    """With respect to each argument in turn, at a first call with such arguments."""
    torch.manual_seed(0)
    cell = Cell(*cell)
    for i in cell.floating if how == "vmap" or not cell.has_gradient else cell.differentiable:
        if how == "jacfwd" and cell.leaves[i].numel() > 2**12:
            continue  # of n numbers it has n tangents of n numbers: 8 GB for the weights of dlrm_forward_kept
        transform = Transform(cell, i)
        error, actual = None, ()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")
                actual = transform.run(how)
        except Exception as raised:
            error = raised
        if error is not None:  # by name, with what to do; on the reference only what has no such derivative
            assert cell.may_refuse(how), f"{cell.name} on {cell.backend}, {how} of {cell.names[i]}: {error!r}"
            assert isinstance(error, RuntimeError), repr(error)
            assert re.match(rf"{cell.name}(:| does not| has no)", str(error)), repr(error)
            assert re.search(INSTEAD, str(error)), repr(error)
            REFUSALS[cell.name, cell.backend, how] = str(error)
        elif cell.has_gradient or how != "jacfwd":  # else there is no other derivative to compare with
            assert_same(actual, transform.expected(how), cell)


class Transform:
    """A transform of a cell, as a function of one of its arguments."""

    def __init__(self, cell: Cell, position: int) -> None:
        self.cell, self.position, self.leaf = cell, position, cell.leaves[position].clone()
        self.two = torch.stack([self.leaf, self.leaf.flip(0)])

    def function(self, leaf: Tensor, backend: str = "") -> tuple[Tensor, ...]:
        return tuple(floats(self.cell(*self.cell.with_one(self.position, leaf.clone()), backend=backend)))

    def total(self, leaf: Tensor, backend: str = "") -> Tensor:
        return sum(out.sum() for out in self.function(leaf, backend))

    def run(self, how: str) -> list[Tensor]:
        func = torch.func
        if how == "vmap":
            return func.vmap(self.function)(self.two)
        if how == "grad":
            return [func.grad(self.total)(self.leaf)]
        if how == "vmap of grad":
            return [func.vmap(func.grad(self.total))(self.two)]
        return {"jacrev": func.jacrev, "jacfwd": func.jacfwd}[how](self.function)(self.leaf)

    def expected(self, how: str) -> list[Tensor]:
        """By a loop, and by autograd."""
        if how == "vmap":
            return [torch.stack(parts) for parts in zip(*(self.function(x, "eager") for x in self.two), strict=True)]
        if how == "grad":
            return [self.gradient(self.leaf)]
        if how == "vmap of grad":
            return [torch.stack([self.gradient(leaf) for leaf in self.two])]
        return torch.autograd.functional.jacobian(functools.partial(self.function, backend="eager"), self.leaf)

    def gradient(self, leaf: Tensor) -> Tensor:
        leaf = leaf.clone().requires_grad_()
        return torch.autograd.grad(self.total(leaf, "eager"), leaf)[0]


# --------------------------------------------------------------------------------------------- views, and zero tensors


@every_cell
def test_negative_views(cell):
    """All arguments are negative views, what is written too: signed integers as well."""
    cell = cell_of(*cell)
    signed = lambda leaf: leaf.is_floating_point() or leaf.dtype in (torch.int32, torch.int64)  # noqa: E731
    leaves = [torch._neg_view(-leaf) if signed(leaf) else leaf.clone() for leaf in cell.leaves]
    assert any(leaf.is_neg() for leaf in leaves)
    assert_same(cell(*leaves), cell(*cell.copies(), backend="eager"), cell)
    assert [leaf.is_neg() for leaf in leaves] == [signed(leaf) for leaf in cell.leaves]


@every_cell
def test_conjugate_views_are_refused_as_complex(cell):
    cell = cell_of(*cell)
    for i in cell.floating:
        leaf = cell.leaves[i]
        with pytest.raises(TypeError, match=r"must (be float|have .* dtype).*; got complex"):
            cell(*cell.with_one(i, torch.complex(leaf.float(), leaf.float()).conj()))


@every_cell
def test_zero_tensors(cell):
    """As forward-mode derivatives have them: read as zeros; what is written must have memory."""
    cell = cell_of(*cell)
    for i, leaf in enumerate(cell.leaves):
        if DEVICE.type == "cuda" and not leaf.is_floating_point():
            continue  # zeros may be no ids or offsets, and there nobody waits to say so
        zero = torch._efficientzerotensor(tuple(leaf.shape), dtype=leaf.dtype, device=leaf.device)
        run = lambda i=i, zero=zero: cell(*cell.with_one(i, zero))  # noqa: E731
        if i in cell.written:
            with pytest.raises(ValueError, match=rf"{cell.name}: {cell.names[i]} must have memory, .*: clone\(\) it"):
                run()
            continue
        try:
            want = cell(*cell.with_one(i, torch.zeros_like(leaf)), backend="eager")
        except (IndexError, ValueError) as error:  # zeros that cannot be an argument's values
            with pytest.raises(type(error)):
                run()
            continue
        assert_same(run(), want, cell)


@pytest.fixture
def reads(monkeypatch):
    """reads(cell): from then on what each call of it reads, and what it writes, as the kernel or the reference gets it;
    in the core nobody sees that."""
    calls = []

    def watch(cell: Cell) -> list:
        form = cell.op.forms["_" if cell.name not in dispatch.names() else ""]

        def seen(function):
            def call(*args):
                arguments = args[2] if function is launch else args
                tensors = list(form.tensors(arguments))
                written = [tensor for i, tensor in tensors if i in form.mutated]
                calls.append(([tensor for i, tensor in tensors if i not in form.mutated], written))
                return function(*args)

            return call

        launch = plan.launch
        monkeypatch.setattr(plan, "launch", seen(launch))
        for name in ("eager", "eager_in_place"):
            monkeypatch.setattr(cell.op, name, seen(getattr(cell.op, name)))
        return calls

    return watch


@pytest.mark.parametrize("cell", WRITING, ids="-".join)
def test_what_is_read_counts_as_it_was_before_the_write(cell, reads):
    """Where it lies in the memory that is written: of each pair of such arguments."""
    cell = cell_of(*cell)
    calls = reads(cell)
    for w in cell.written:
        written = cell.leaves[w]
        for r in cell.positions(lambda name, leaf: name not in cell.spec.mutated):
            read = cell.leaves[r]
            if read.dtype != written.dtype or not read.numel():
                continue
            memory = written.new_zeros(max(written.numel(), 1 + read.numel()))
            memory[: written.numel()] = written.flatten()
            inside = memory[1 : 1 + read.numel()]
            if not read.is_floating_point():  # other integers would be no ids
                inside.copy_(read.flatten())
            overlapping, apart = cell.copies(), cell.copies()
            overlapping[w], overlapping[r] = memory[: written.numel()].view(written.shape), inside.view(read.shape)
            apart[w], apart[r] = overlapping[w].clone(), overlapping[r].clone()
            calls.clear()
            actual = cell(*overlapping)
            for of_reads, of_writes in calls:
                assert not any(overlap(a, b) for a in of_reads for b in of_writes)
            assert calls or cell.backend == "cpp" or (DEVICE.type == "cuda" and cell.backend != "eager")
            assert_same(actual, cell(*apart, backend="eager"), cell)
    first, *others = cell.written
    for other in others:  # which of two writes counts, nobody knows
        a, b = cell.leaves[first], cell.leaves[other]
        if (a.dtype, a.shape) == (b.dtype, b.shape):
            leaves = cell.copies()
            leaves[other] = leaves[first]
            with pytest.raises(ValueError, match=r"must not overlap .*, since both are written to"):
                cell(*leaves)


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_drops_a_clone_of_what_is_written(dynamic):
    """It hands over a view of the memory that the op writes, in the clone's place; for every op that writes at once."""
    cells = [cell_of(name, backend) for name, backend in WRITING if backend == "triton"]
    calls = []
    for cell in cells:
        w, size = cell.written[0], cell.leaves[cell.written[0]].numel()
        reads = [r for r in cell.floating if cell.names[r] not in cell.spec.mutated and cell.leaves[r].numel() <= size]
        calls.append((cell, w, reads))

    def step(*groups):
        for (cell, w, reads), leaves in zip(calls, groups, strict=True):
            arguments = list(leaves)
            for r in reads:
                arguments[r] = leaves[w].view(-1)[: arguments[r].numel()].view(arguments[r].shape).clone()
            cell(*arguments)

    groups, again = ([cell.copies() for cell in cells] for _ in range(2))
    step(*groups)
    importlib.import_module("torch._inductor.config")
    torch._dynamo.reset()
    with torch._inductor.config.patch(compile_threads=1):  # no process for it
        torch.compile(step, dynamic=dynamic, fullgraph=True)(*again)
    assert any(reads for _, _, reads in calls)
    for actual, want in zip(again, groups, strict=True):
        assert_same(actual, want)


# ------------------------------------------------------------------------------------------- devices, dtypes, threads


@every_cell
def test_meta_tensors_and_other_defaults(cell):
    cell = cell_of(*cell)
    want = cell(*cell.copies(), backend="eager")
    actual = cell(*(leaf.to("meta") for leaf in cell.leaves))
    assert [(out.shape, out.dtype, out.is_meta) for out in actual] == [(out.shape, out.dtype, True) for out in want]
    copies = cell.copies()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            actual = cell(*copies)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(actual, want, cell)


MAKERS = {
    "tensor", "as_tensor", "empty", "empty_strided", "zeros", "ones", "full", "arange", "linspace", "eye", "rand",
    "randn", "randint", "randperm", "scalar_tensor", "tril_indices", "triu_indices",
}  # fmt: skip


def test_what_ops_make_says_where():
    """Else the default device decides, which is meta while a large model is made."""
    files = [f for folder in ("ops", "dispatch", "device") for f in (runtime.KERNELS / folder).rglob("*.py")]
    files = [f for f in files if not f.name.startswith(("test_", "conftest", "bench", "spec"))]
    silent = [
        f"{file.relative_to(runtime.KERNELS)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"torch.{name}" for name in MAKERS}
        if "device" not in [keyword.arg for keyword in node.keywords]
    ]
    assert len(files) > 50
    assert silent == []


def at_once(*steps: Callable) -> None:
    """Each step in three threads at once, which change places often."""
    before, errors, barrier = sys.getswitchinterval(), [], threading.Barrier(3)

    def work():
        try:
            for step in steps:
                barrier.wait(300)
                step()
        except BaseException as error:
            barrier.abort()
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(barrier.parties)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not errors


def test_checks_at_once():
    """Each watches the kernels that it runs and guards their memory, which is for all threads: one waits for the other,
    and leaves all as it was."""
    if runtime.triton_mode() != "interpreted":
        pytest.skip("Triton is not interpreted here")
    interpreter = importlib.import_module("triton.runtime.interpreter")
    before = vars(interpreter.InterpreterBuilder).copy(), vars(interpreter.GridExecutor).copy()
    function = functools.partial(kernels.add_relu, backend="triton")
    at_once(lambda: check("add_relu", function, device="cpu", cases=[Case((2, 3))]))
    assert (vars(interpreter.InterpreterBuilder), vars(interpreter.GridExecutor)) == before
    assert allocation._replacement is None


def test_threads_at_once():
    """Each op on each backend: one interpreted launch at a time."""

    def step(name: str, backend: str) -> None:
        cell = cell_of(name, backend)
        assert_same(cell(*cell.copies()), cell(*cell.copies(), backend="eager"), cell)

    at_once(*(functools.partial(step, *cell) for cell in CELLS))


# --------------------------------------------------------------------------------------------------- no argument at all

WRONG = {
    "None": None, "a string": "abc", "a list": [1.0, "a"], "a list of None": [None], "a dict": {},
    "an object": object(), "1.5": 1.5, "NaN": float("nan"), "2^70": 2**70, "-5": -5, "NumPy": np.ones(3),
    "int8": torch.ones(3, dtype=torch.int8), "float64": torch.ones(2, 2, 2, dtype=torch.float64),
}  # fmt: skip
TABLE, IDS, GRAD, STARTS = torch.randn(6, 4), torch.tensor([[0], [3], [3]]), torch.randn(3, 1, 4), torch.tensor([0, 6])
# Arguments of the public functions that have no spec of their own: they share an op.
EXAMPLES = {
    "embedding_bags_sgd_": (TABLE, STARTS, IDS, GRAD, 0.1, None, "sum", None, None),
    "embedding_bags_adagrad_": (TABLE, TABLE.abs(), STARTS, IDS, GRAD, 0.1, None, "sum", None, None, 1e-3),
    "embedding_bags_rowwise_adagrad_": (
        TABLE, TABLE[:, 0].abs(), STARTS, IDS, GRAD, 0.1, None, "sum", None, None, 1e-3,
    ),
    "embedding_lookup": (IDS, TABLE),
    "embedding_lookup_with_image": (IDS, TABLE, TABLE),
    "assemble_deepstack_embedding": (IDS, TABLE, 6),
    "embedding_lookup_multimodal": (IDS, TABLE, IDS, TABLE, TABLE, 1, 2),
    "outer_linear_folded": (torch.randn(3, 4), torch.randn(5, 256), torch.randn(5), "relu", "ieee"),
    "fold_outer_weight": (torch.randn(5, 16),),
    "check_ids": ("cpu",),
    "out_of_range_count": ("cpu",),
}
# What has a test of its own: the backend's report, and fused_mlp.
ELSEWHERE = ("kernels.compiler", "kernels.ops.fused_mlp")
FUNCTIONS = [
    name for name in kernels.__all__
    if inspect.isfunction(function := getattr(kernels, name)) and not function.__module__.startswith(ELSEWHERE)
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_argument_is_a_type_or_value_error_that_names_it(name):
    function = getattr(kernels, name)
    arguments = cell_of(name, "eager").call.arguments() if name in FORMS else EXAMPLES[name]
    parameters = list(inspect.signature(function).parameters)
    named = {"backend": "eager"} if "backend" in parameters else {}
    unnamed = []
    for i, parameter in enumerate(parameters[: len(arguments)]):
        for kind, wrong in WRONG.items():
            values = [value.clone() if isinstance(value, Tensor) else value for value in arguments]
            values[i] = wrong
            try:
                function(*values, **named)  # which None may be, and many a number
            except (TypeError, ValueError) as error:
                meant = wrong is None and "must have shape" in str(error)  # without offsets, say, others do not fit
                if parameter not in str(error) and not meant:
                    unnamed.append(f"{kind} as {parameter}: {error}")
    assert not unnamed
    for wrong in (None, 3, "gpu", ["eager"], np.ones(3)) if named else ():
        with pytest.raises(ValueError, match="backend must be one of auto, eager, triton, cuda"):
            function(*arguments, backend=wrong)
