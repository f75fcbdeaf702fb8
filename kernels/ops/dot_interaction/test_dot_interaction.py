"""dot_interaction against eager, on every backend that this machine has."""

import functools
import importlib
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from ... import runtime
from ...check import Call, Case, check, check_gradients, gradients
from ...check.contract import DEVICE, Dispatch, Gradients, OnGpu, Values, every_backend, kernel_backend
from ...measure import bench
from . import eager
from .eager import width
from .module import DotInteraction
from .op import dot_interaction
from .spec import SPEC


def of_shape(rows, features, columns, pad_to=1, dtype=torch.float32, layout="contiguous") -> Call:
    case = Case((rows, columns), dtype, layout)
    dense, sparse = case.tensor(1, DEVICE), case.tensor(2, DEVICE, (rows, features, columns))
    return Call(f"{rows} rows, {features} features of {columns}, to {pad_to}", (dense, sparse), (pad_to,))


def by_tf32x3(dense: torch.Tensor, sparse: torch.Tensor, pad_to: int) -> torch.Tensor:
    """Of one sparse vector a row, by tl.dot's products for input_precision="tf32x3", added up exactly."""

    def split(x):
        high = ((x.view(torch.int32) + 0x1000) >> 13 << 13).view(torch.float32)  # cvt.rna.tf32.f32
        return high.double(), ((x - high).view(torch.int32) >> 13 << 13).view(torch.float32).double()  # mma cuts

    if dense.dtype != torch.float32:
        return eager.dot_interaction(dense, sparse, pad_to)
    (a, small_a), (b, small_b) = split(dense), split(sparse[:, 0])
    small = (small_a * b + a * small_b).sum(1, keepdim=True)
    product = small.where(~small.isnan(), 0.0) + (a * b).sum(1, keepdim=True)
    return torch.cat([dense, product.float()], dim=1)


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [(1.0, 1.0, True), (2.0**-100, 2.0**60, True), (math.inf, 1.0, True),
     (torch.finfo(torch.float32).max, 1e-10, False), (2.0**-125, 2.0**60, False), (math.inf, 1e-45, False)],
)
def test_tf32x3_is_full_float32_of_usual_numbers_alone(first, second, fits):
    """Why the Triton kernel multiplies with "ieee": by what the op itself is held to."""
    generator = torch.Generator().manual_seed(1)
    mantissas = (1 + torch.rand(2, 99, 3, generator=generator)) / 2  # so that no product overflows
    tensors = mantissas[0] * first, (mantissas[1] * second).unsqueeze(1)
    if not fits:  # one product, of the number itself
        tensors = tuple(tensor[..., :1].clone() for tensor in tensors)
        tensors[0][0], tensors[1][0] = first, second
    call = Call("", tensors, (1,))
    spec = replace(SPEC, calls=lambda case, device: [call])
    expected = nullcontext() if fits else pytest.raises(AssertionError, match="wrong")
    with expected:
        check("dot_interaction", by_tf32x3, cases=[Case((99, 3))], spec=spec)


class TestDotInteraction(Values, Gradients, Dispatch, OnGpu):
    op = "dot_interaction"

    def wrong_input(self, call):
        dense, sparse = call.tensors
        return [
            ((dense.int(), sparse), TypeError, "dense must be float32, .*; got int32"),
            ((dense[0], sparse), ValueError, "dense must have shape \\[B, D\\]; got \\[24\\]"),
            ((dense, sparse[..., :3]), ValueError, "sparse must have shape \\[5, F, 24\\], for .*; got \\[5, 4, 3\\]"),
            ((dense, sparse[:, 0]), ValueError, "sparse must have shape \\[5, F, 24\\], for .*; got \\[5, 24\\]"),
            ((dense, sparse, 0), ValueError, "pad_to must be a positive integer; got 0"),
            ((dense, sparse, 1.5), TypeError, "pad_to must be an integer; got float"),
        ]

    def hold(self, backend, calls):
        """Values and gradients of these calls."""
        for call in calls:
            spec = replace(self.spec, calls=lambda case, device, call=call: [call])
            check(self.op, self.function(backend), cases=[Case(tuple(call.tensors[0].shape))], spec=spec)
            self.check_gradients(backend, call)

    @kernel_backend
    @pytest.mark.parametrize("features", [0, 1, 26, 27, 40])
    def test_every_width(self, backend, features):
        """A few rows, of which the last block is not full, of every number of columns; rows aligned and not."""
        columns, pads = (1, 3, 16, 17, 64, 128, 130), (1, 4, 16)
        self.hold(backend, [of_shape(7, features, c, pads[i % 3]) for i, c in enumerate(columns)])
        self.hold(backend, [of_shape(rows, features, 16, 16) for rows in (1, 129)])

    @pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
    def test_a_row_a_program(self, monkeypatch):
        """As float32 is computed on a GPU."""
        launcher = importlib.import_module("kernels.ops.dot_interaction.triton_launch")
        monkeypatch.setattr(launcher, "forward", functools.partial(launcher.forward, by_row=True))
        cases = Case((2, 17), values="special"), Case((2, 64), layout="misaligned", every_option=False)
        check(self.op, self.function("triton"), cases=cases)

    @pytest.mark.parametrize(
        ("features", "columns", "dtype", "kernel"),
        [(26, 16, torch.float32, "row_kernel"), (31, 64, torch.float32, "row_kernel"),
         (26, 65, torch.float32, "forward_kernel"), (26, 128, torch.float32, "forward_kernel"),
         (32, 16, torch.float32, "forward_kernel"), (26, 16, torch.bfloat16, "forward_kernel"),
         (26, 16, torch.float64, "forward_kernel")],
    )
    def test_which_kernel_a_gpu_runs(self, monkeypatch, features, columns, dtype, kernel):
        """By what an H200 has recorded: triton_launch.forward's table."""
        launcher, functions = importlib.import_module("kernels.ops.dot_interaction.triton_launch"), MagicMock()
        monkeypatch.setattr(launcher, "functions", functions)
        monkeypatch.setattr(launcher, "interpreted", lambda: False)
        dense, sparse = torch.empty(2, columns, dtype=dtype), torch.empty(2, features, columns, dtype=dtype)
        launcher.forward(dense, sparse, 1, dense.new_empty(2, width(features, columns)))
        both = ("row_kernel", "forward_kernel")
        assert [name for name in both if getattr(functions, name).__getitem__.called] == [kernel]

    @kernel_backend
    def test_more_vectors_than_are_held(self, backend):
        self.hold(backend, [of_shape(2, 150, 5), of_shape(3, 70, 20, 4, torch.bfloat16)])

    @kernel_backend
    @pytest.mark.parametrize("features", [31, 32])
    def test_a_block_that_is_full_of_vectors_and_one_more(self, backend, features):
        """32 vectors are a block of pairs, and the most that the copy engine's kernels take."""
        self.hold(backend, [of_shape(3, features, columns) for columns in (5, 16)])

    @kernel_backend
    def test_rows_that_are_not_there(self, backend):
        for call in (of_shape(0, 26, 16), of_shape(3, 0, 16), of_shape(0, 0, 1)):
            out = self.function(backend)(*call.arguments())
            assert out.shape == (len(call.tensors[0]), width(call.tensors[1].shape[1], call.tensors[0].shape[1]))
            assert torch.equal(out[:, : call.tensors[0].shape[1]], call.tensors[0])

    @every_backend
    @pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
    def test_a_row_keeps_its_nan_to_itself(self, backend, value):
        """Rows beside it, in the same block, are as without it; in its own, what hangs on it is not finite."""
        call = of_shape(9, 26, 16)
        dense, sparse = call.tensors
        grad = self.grads(call)[0]
        clean = [self.function(backend)(dense, sparse), *gradients(self.function(backend), call, (True, True), grad)]
        sparse[4, 7, 3] = value
        dense[6, 0] = value
        results = [self.function(backend)(dense, sparse), *gradients(self.function(backend), call, (True, True), grad)]
        want = gradients(self.function("eager"), call, (True, True), grad)
        others = [row for row in range(9) if row not in (4, 6)]
        for before, after in zip(clean, results, strict=True):
            assert torch.equal(before[others], after[others])
        assert torch.equal(results[0].isnan(), self.function("eager")(dense, sparse).isnan())
        for got, wanted in zip(results[1:], want, strict=True):
            assert torch.equal(got.isfinite(), wanted.isfinite())

    @kernel_backend
    def test_gradients_of_one_argument(self, backend):
        for needed in ((True, False), (False, True)):
            call = of_shape(7, 26, 16)
            check_gradients(self.op, self.function(backend), call, needed, self.grads(call))

    @kernel_backend
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_gradients_of_halves(self, backend, dtype):
        """On tensor cores in CUDA: rows of out's gradient that begin anywhere in 16 bytes, few vectors and 32."""
        for features, columns, pad_to in ((1, 8, 1), (15, 16, 1), (16, 24, 4), (26, 128, 1), (31, 16, 8)):
            self.check_gradients(backend, of_shape(9, features, columns, pad_to, dtype))

    @every_backend
    def test_order_of_the_pairs(self, backend):
        """Row by row below the diagonal, the columns of the dense vector first, zeros last."""
        dense, sparse = torch.tensor([[1.0]], device=DEVICE), torch.tensor([[[2.0], [3.0], [5.0]]], device=DEVICE)
        out = self.function(backend)(dense, sparse, 4)
        assert out.tolist() == [[1, 2 * 1, 3 * 1, 3 * 2, 5 * 1, 5 * 2, 5 * 3, 0]]


# ------------------------------------------------------------------------------------------------------------------
# fast/README.md.

@pytest.mark.parametrize("pad_to", [1, 8])
def test_the_module_is_the_function(pad_to):
    dense, sparse = of_shape(5, 3, 4).tensors
    module = DotInteraction(pad_to)
    assert torch.equal(module(dense, sparse), dot_interaction(dense, sparse, pad_to))
    assert not module.state_dict()
    assert repr(module) == f"DotInteraction(pad_to={pad_to})"
    with pytest.raises(ValueError, match="backend must be"):
        DotInteraction(backend="none")(dense, sparse)


PAGE = Path(__file__).parent / "fast" / "README.md"


# The sources of the last record that is older than half_backward, whose work tiled did.
WITHOUT_HALF_BACKWARD = "7b7832547e4dccc330da8f0b59374b6556c75225867bf50fae66f40e1419ee6f"


def recorded(op: str) -> dict:
    return bench.load(op, "h200")


def kernel_of(backward: bool, dtype: str) -> str:
    """The kernel that kernel.cuh's launch functions took on an H200 for 26 features and these columns, since no record
    says which one ran."""
    if not backward:
        return "bulk_forward" if dtype == "float32" else "bulk_half"
    if dtype == "float32":
        return "bulk_backward"
    return "tiled" if recorded("dot_interaction")["sources_sha256"] == WITHOUT_HALF_BACKWARD else "half_backward"


def recorded_table() -> list[str]:
    """The page's table: each row of the record's that our CUDA kernels ran, by kernel."""
    times: dict[tuple, dict[str, dict]] = {}
    for row in recorded("dot_interaction")["rows"]:
        if row["form"] in ("functional", "backward") and row["us_p50"]:
            key = row["form"] == "backward", row["rows"], row["columns"], row["dtype"]
            times.setdefault(key, {})[row["implementation"]] = row

    def line(key: tuple) -> str:
        backward, rows, columns, dtype = key
        us = [f"{times[key][name]['us_p50']:,.1f}" if name in times[key] else "–"
              for name in ("cuda", "triton", "torch.compile", "eager")]
        share = f"{times[key]['cuda']['percent_of_copy']:.0f}"
        call = [kernel_of(backward, dtype), "backward" if backward else "forward", f"{rows:,}", str(columns), dtype]
        return f"| {' | '.join([*call, us[0], share, *us[1:]])} |"

    order = ("bulk_forward", "bulk_backward", "bulk_half", "half_backward", "tiled")
    places = {key: (order.index(kernel_of(key[0], key[3])), -key[1], key[2]) for key in times}
    return [line(key) for key in sorted(places, key=places.get)]


def half_gradients_of_lookup_interact() -> list[float]:
    rows = recorded("lookup_interact")["rows"]
    return [row["us_p50"] for row in rows
            if (row["part"], row["implementation"], row.get("dtype")) == ("gradients", "cuda", "bfloat16")]


def test_the_page_of_the_fast_kernels_says_what_is_recorded():
    text = PAGE.read_text()
    table = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert table == recorded_table(), "the table must be\n" + "\n".join(recorded_table())
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    count = 0
    for section in text.split("\n## ")[1:]:
        kernel, prose = section.split("\n", 1)
        rows = [row for row in cells if row[0] == kernel]
        prose = "\n".join(line for line in prose.splitlines() if not line.startswith("|"))
        if kernel == "half_backward":  # what lookup_interact's backward takes, and tiled
            rows += [row for row in cells if row[0] == "tiled"]
            rows += [["", "", "", "", "", f"{us:,.1f}", ""] for us in half_gradients_of_lookup_interact()]
        times, shares = re.findall(r"([\d,.]*\d) µs", prose), re.findall(r"(\d+) %", prose)
        assert set(times) <= {us for row in rows for us in (row[5], *row[7:])}, kernel
        assert set(shares) <= {row[6] for row in rows}, kernel
        count += len(times) + len(shares)
    assert count > 10


def test_the_page_of_the_fast_kernels_has_a_section_for_each_and_its_links_exist():
    text = PAGE.read_text()
    kernels = {path.stem for path in (*PAGE.parent.glob("*.cuh"), PAGE.parents[1] / "bulk_forward.cuh")}
    assert kernels | {"plain", "tiled"} == set(re.findall(r"^## (\w+)$", text, re.M))
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert len(links) > 5
    assert all((PAGE.parent / link).exists() for link in links)
