"""weights.cuh: the weights' gradients by CUDA, on the host; on a GPU test_fused_mlp.py has them in the backward."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from ... import runtime
from ...check.host import run_source as host
from ...dispatch import nvrtc, plan
from . import cuda_launch, triton_launch, weights_launch
from .packing import elements, hidden_parts, layers, padded, views
from .update import GRADIENTS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
# (widths, columns of x, rows, parts of so many rows): tiles at their edges, one layer, one output, filled-up widths,
# two MLPs, which have x alike.
CALLS = [
    ("13-70-33-1", 13, 77, 1, 96), ("13-70-33-1", 13, 77, 2, 64), ("36-20-4", 40, 200, 4, 64), ("1-1", 1, 1, 1, 32),
    ("130-129-65", 131, 45, 2, 32), ("13-20-4", 14, 77, 2, 64), ("64-64", 64, 129, 5, 32), ("5-16-200-3", 8, 40, 1, 64),
    ("20-12", 20, 0, 1, 0), ("13-70-4 5-33-1 16-3", 16, 77, 2, 64),
]
MOST_OFF = 6e-4, 1e-6  # of weights, by rounding to tf32, which cutting off exceeds; of biases, which are not rounded


def drawn(widths: str, columns: int, rows: int, activation: str = "relu") -> tuple[torch.Tensor, ...]:
    """x, hidden, grads, each in memory of its own; NaN where nothing is to be read, or not to count."""
    torch.manual_seed(0)
    parts, (outputs, _, of_hidden) = layers(widths), hidden_parts(widths, activation, "identity")
    x = torch.full((rows, columns), torch.nan)
    x[:, : parts[0].inputs] = torch.randn(rows, parts[0].inputs)
    hidden = torch.full((rows, of_hidden), torch.nan)
    grads = torch.full((rows, sum(padded(layer.outputs) for layer in parts)), torch.nan)
    column = 0
    for i, layer in enumerate(parts):
        grads[:, column : column + layer.outputs] = torch.randn(rows, layer.outputs)
        column += padded(layer.outputs)
        if i + 1 < len(parts):
            hidden[:, outputs[i] : outputs[i] + layer.outputs] = torch.randn(rows, layer.outputs)
    return x, hidden, grads


def same(*tensors):
    return tensors


def differences(widths: str, columns: int, rows: int, parts: int, part: int, *, activation: str = "relu", move=same):
    """For each layer, how far weights and biases are from float64, relative to the largest number and to MOST_OFF;
    padding is zero."""
    drawn_of = [drawn(of_mlp, columns, rows, activation) for of_mlp in widths.split()]
    sizes = [*map(elements, widths.split())]
    target = torch.full((parts, sum(sizes)), torch.nan)
    weights_launch.weights(*zip(*(move(*of_mlp) for of_mlp in drawn_of), strict=True), target, widths, parts, part)
    sums = target.double().sum(0).split(sizes)
    for of_mlp, found, (x, hidden, grads) in zip(widths.split(), sums, drawn_of, strict=True):
        outputs, _, _ = hidden_parts(of_mlp, activation, "identity")
        column, filled = 0, torch.zeros_like(found)
        pairs = zip(layers(of_mlp), views(found, of_mlp), views(filled, of_mlp), strict=True)
        for i, (layer, (weight, bias), (in_weight, in_bias)) in enumerate(pairs):
            g = grads[:, column : column + layer.outputs].double()
            h = (x if i == 0 else hidden[:, outputs[i - 1] :])[:, : layer.inputs].double()
            column += padded(layer.outputs)
            for got, want, most in ((weight, g.t() @ h, MOST_OFF[0]), (bias, g.sum(0), MOST_OFF[1])):
                yield ((got - want).abs().max() / want.abs().max().clamp(min=1e-3)).item() / most
            in_weight.copy_(weight)
            in_bias.copy_(bias)
        assert torch.equal(filled, found), "what is filled up is zero"


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_they_are_float64s(monkeypatch, call, backwards):
    monkeypatch.setattr(host, "backwards", backwards)
    assert max(differences(*call)) < 1


def test_beside_what_an_activations_derivative_reads():
    """gelu keeps its inputs too: rows of `hidden` are longer."""
    assert max(differences(*CALLS[0], activation="gelu")) < 1


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_less_shared_memory_gives_the_same_bits(monkeypatch, call):
    """Of a block on sm_80 and sm_89 fewer rows are on their way."""
    found, launch = [], weights_launch.launch

    def noted(source, grid, target, *rest):
        launch(source, grid, target, *rest)
        found.append((source.shared, target.clone()))

    monkeypatch.setattr(weights_launch, "launch", noted)
    for available in (232_448, 166_912, 101_376):
        monkeypatch.setattr(weights_launch, "shared_memory", lambda available=available: available)
        assert max(differences(*call)) < 1
    assert [shared for shared, _ in found] == [110_592, 73_728, 73_728]
    assert all(torch.equal(target, found[0][1]) for _, target in found)


@pytest.mark.parametrize(("arch", "shared"), [(80, 73_728), (89, 73_728), (90, 110_592)])
def test_a_plan_takes_what_two_blocks_have_at_once(monkeypatch, arch, shared):
    widths, planned = "13-70-33-1", []

    class Recorder(plan.Recorder):
        def launch_source(self, source, grid, arguments):
            planned.append((source.name, source.shared, grid))

    monkeypatch.setattr(weights_launch, "interpreted", lambda: False)
    arguments = [*([tensor] for tensor in drawn(widths, 16, 77)), widths]
    plan.record(GRADIENTS, "", arguments, GRADIENTS.allocations("", arguments), arch, None, "cuda", Recorder)
    assert planned[0] == ("fused_mlp_weights", shared, (weights_launch.tiles_of(widths), 1))


def test_memory_that_is_not_aligned():
    """All one number behind a multiple of 16 bytes."""

    def moved(tensor):
        memory = torch.empty(tensor.numel() + 1)
        return memory[1:].view(tensor.shape).copy_(tensor)

    for call in (CALLS[2], CALLS[4]):
        assert max(differences(*call, move=lambda *of_mlp: map(moved, of_mlp))) < 1


def test_an_infinite_gradient_stays_with_its_output():
    x, hidden, grads = drawn("36-20-4", 36, 50)
    x[3, 5], grads[3, 7] = torch.inf, torch.inf
    target = torch.empty(1, elements("36-20-4"))
    weights_launch.weights([x], [hidden], [grads], target, "36-20-4", 1, 64)
    (weight, bias), (above, _) = views(target[0], "36-20-4")
    rows, columns = (~weight.isfinite()).nonzero().unbind(1)
    assert ((rows == 7) | (columns == 5)).all()
    assert (~weight[7].isfinite()).all()
    assert bias.isinf().nonzero().tolist() == [[7]]
    assert above.isfinite().all()
    assert target.isfinite().logical_not().sum() == len(rows) + 1


def test_the_parts_are_the_shapes():
    assert weights_launch.parts_of(2048, "367-512-256-1") == (3, 704)
    assert weights_launch.parts_of(2048, "13-512-256-64-16") == (5, 416)
    assert weights_launch.parts_of(2048, "13-512-256-64-16 367-512-256-1") == (2, 1024)
    assert weights_launch.parts_of(100, "367-512-256-1") == (1, 128)
    assert weights_launch.parts_of(0, "13-16") == (1, 0)
    assert weights_launch.parts_of(33893, "13-16") == (212, 160)  # and not 264, of which 52 have no rows
    for widths in ("13-16", "367-512-256-1", "479-1024-1024-512-256-1"):
        for rows in range(1, 3000, 97):
            parts, part = weights_launch.parts_of(rows, widths)
            assert (parts - 1) * part < rows <= parts * part
            assert part % 32 == 0


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_the_backward_takes_it(monkeypatch, rows):
    """As a GPU's does, the chain by the interpreter; for other numbers and precisions it is Triton's."""
    if not triton_launch.interpreted():
        pytest.skip("Triton is not interpreted here")
    widths, taken = "13-20-4", []
    x, hidden, _ = drawn(widths, 13, rows)
    hidden = (hidden.nan_to_num_().view(torch.int32) & ~0x1FFF).view(torch.float32)  # as a forward in tf32 keeps it
    packed, out, grad_out = torch.randn(elements(widths)), torch.randn(rows, 4), torch.randn(rows, 4)

    def gradient(runs: bool):
        monkeypatch.setattr(weights_launch, "runs", lambda *given: taken.append(given) or runs)
        found = torch.full((elements(widths),), torch.nan)
        triton_launch.backward(grad_out, x, packed, hidden, out, widths, "relu", "identity", "tf32", True, None, found)
        return found

    torch.testing.assert_close(gradient(True), gradient(False), rtol=1e-3, atol=1e-3)
    assert taken == [(torch.float32, "tf32")] * 2


def test_where_it_runs(monkeypatch):
    monkeypatch.setattr(weights_launch, "interpreted", lambda: False)
    monkeypatch.setattr(weights_launch, "architecture", lambda _: 90)
    monkeypatch.setattr(weights_launch, "nvrtc_runs", lambda: True)
    assert weights_launch.runs(torch.float32, "tf32")
    assert not weights_launch.runs(torch.float32, "ieee")
    assert not weights_launch.runs(torch.bfloat16, "tf32")
    for name, value in (("interpreted", True), ("architecture", 75), ("nvrtc_runs", False)):
        with monkeypatch.context() as patch:
            patch.setattr(weights_launch, name, lambda *_, value=value: value)
            assert not weights_launch.runs(torch.float32, "tf32")


# Each is a line of weights.cuh, and what a slip makes of it.
MUTANTS = [
    ("r < there && c < columns", "r <= there && c < columns"),
    ("copies.wait(stages - 2);", "copies.wait(stages - 1);"),
    ("__syncthreads();  // the stage is there", "// the stage is there"),
    ("__syncthreads();  // the stages are done", "// the stages are done"),
    ("(part * weights_pairs + pair) * 8 + t", "pair * 8 + t + 4"),
    ("a[0][i / 4].element[i % 4] + a[1][i / 4]", "a[0][i / 4].element[i % 4] + a[0][i / 4]"),
    ("4 * g + 32 * half;", "4 * g;"),
    ("__float_as_uint(rounded_to_tf32(x))", "__float_as_uint(x)"),
    ("biases[i] += a[0][i / 4].element[i % 4]", "biases[i] += rounded_to_tf32(a[0][i / 4].element[i % 4])"),
    ("n / 32 * 2 + c % 2", "c % 2 * 2 + n / 32"),
    ("p < weights_pairs; ++p) sum += sum_of.tiles", "p < weights_pairs - 1; ++p) sum += sum_of.tiles"),
    ("p < weights_pairs; ++p) sum += sum_of.biases", "p < weights_pairs - 1; ++p) sum += sum_of.biases"),
    ("exists ? sum : 0.0f", "sum"),
    ("output + n < layer.outputs ? sum : 0.0f", "sum"),
    ("blockIdx.y * result.elements", "0LL"),
    ("input == 0 && n < weights_tile", "n < weights_tile"),
]
# These read outside of a tensor, and store nothing of it.
READERS = [
    ("int(of.x_columns) - input, i", "layer.filled_inputs - input, i"),
    ("r < there && c < columns", "r < there && c <= columns"),
    ("layer.filled_outputs - output, i", "weights_tile, i"),
]


def mutated(old: str, new: str):
    """weights_launch.source with this edit of weights.cuh."""
    header = (runtime.KERNELS / "ops/fused_mlp/weights.cuh").read_text().replace("#pragma once", "")
    assert header.count(old) == 1, "the mutant is of one line"
    whole, include = weights_launch.source, '#include "ops/fused_mlp/weights.cuh"'

    def source(*shape):
        own = whole(*shape)
        return replace(own, text=own.text.replace(include, header.replace(old, new)))

    return source


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), MUTANTS, ids=lambda text: text[:30])
def test_a_mutant_dies(monkeypatch, old, new):
    monkeypatch.setattr(weights_launch, "source", mutated(old, new))
    for call in CALLS:
        for backwards in (False, True):
            monkeypatch.setattr(host, "backwards", backwards)
            try:
                if not max(differences(*call)) < 1:
                    return
            except (AssertionError, RuntimeError):
                return
    pytest.fail("every call has the right result")


UNDER_ASAN = """
import sys
from functools import partial
from kernels.check import Case, check
from kernels.check.host import run_source as host
from kernels.dispatch.core import on_host
from kernels.ops.fused_mlp import weights_launch
from kernels.ops.fused_mlp.test_weights import CALLS, differences, mutated
from kernels.ops.fused_mlp.update import STEP
host.extra_flags = ("-fsanitize=address,undefined", "-fsanitize=bounds-strict", "-fno-sanitize-recover=all", "-g1")
step, *edit = sys.argv[1:]
if edit:
    weights_launch.source = mutated(*edit)
for call in CALLS[::int(step)]:
    for error in differences(*call):
        assert error < 1, (call, error)
with on_host():
    check(STEP.name, partial(STEP.call, "cuda"), cases=[Case((40, 3), layout="misaligned", every_option=False)])
"""


def under_asan(step: int, *edit: str) -> subprocess.CompletedProcess:
    """Every `step`-th call, each some seconds of compilation, by weights.cuh or an edit of it; and a step of SGD."""
    libraries = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": os.pathsep.join(sys.path)
    }
    command = [sys.executable, "-c", UNDER_ASAN, str(step), *edit]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_is_touched_outside_of_a_tensor(step):
    done = under_asan(step)
    assert (done.returncode, done.stdout) == (0, "fused_mlp_step: 1 cases passed on cpu\n"), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("edit", READERS, ids=str)
def test_a_reader_dies(edit):
    assert "heap-buffer-overflow" in under_asan(1, *edit).stderr


@pytest.mark.skipif(nvrtc.why_not() != "", reason=f"no NVRTC: {nvrtc.why_not()}")
@pytest.mark.parametrize("arch", [80, 90])
def test_nvrtc_compiles_it(tmp_path, arch):
    stages = weights_launch.stages_of({80: 166_912, 90: 232_448}[arch])
    for source in (weights_launch.source("13-512-16 367-512-256-1", *stages), cuda_launch.source("adagrad")):
        nvrtc.compiled(nvrtc.Kernel(source, arch), tmp_path)
