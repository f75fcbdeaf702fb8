"""dlrm_forward by pairs of blocks: where weights lie, what is computed, on the host and on a GPU, and what fits."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kernels

from ... import runtime
from ...check import Case, check
from ...check.contract import DEVICE, Contract, every_backend, kernel_backend
from ...device.launch import architecture
from ...device.source_launch import Source
from ...dispatch import nvrtc
from ...dispatch.core import on_host
from ...inductor.machine_code import opcodes, registers, sass
from ..fused_mlp.packing import elements, views
from . import choice, cuda_launch
from .op import KEPT, dlrm_forward_kept
from .op import KEPT_ACTIVATIONS as KEPT_NAMES
from .pair import BLOCKS, ROWS, Pairs, lay_out_source, pairs_for, pairs_source
from .shape import DLRMError, Shape
from .spec import KEPT_ACTIVATIONS, SPECS, draw_kept, draw_model
from .test_dlrm_forward import as_list, told_at_once
from .tile import TYPES, Tiles

MAIN = Shape((13, 512, 256, 64, 16), (367, 512, 256, 1), 26)
# Widths of the bottom MLP behind the dense features, of the top MLP, F, D: warpgroups share outputs in each way.
WIDTHS = {
    "small": ((256, 128, 64), (128, 64, 1), 9, 16),
    "middle": ((512, 256, 128), (256, 128, 1), 20, 24),
    "wide": ((256, 512, 256), (512, 256, 1), 31, 8),
    "vectors": ((256, 128, 128), (512, 64, 1), 15, 64),
}
H100 = 227 * 1024  # bytes of shared memory a block
needs_nvrtc = pytest.mark.skipif(nvrtc.why_not() != "", reason=f"no NVRTC: {nvrtc.why_not()}")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")


@pytest.fixture
def pairs(monkeypatch):
    """Calls are computed by pairs, of which three run at once."""
    made = []
    monkeypatch.setattr(cuda_launch, "multiprocessors", lambda: 7)
    monkeypatch.setattr(cuda_launch, "pairs_source", lambda design: made.append(design) or pairs_source(design))
    return made


def model(name="small", rows=37, bags="", inputs=13, dtype=torch.float32, ids=torch.int64, activations=None):
    """A call with one of WIDTHS."""
    hidden, top, features, width = WIDTHS[name]
    variant = hidden, top, activations or ("relu", "relu", "relu", "identity")
    precision = "tf32" if dtype == torch.float32 else "ieee"
    return draw_model(Case((1,), dtype), rows, inputs, width, features, variant, bags, DEVICE, ids, precision)


def shape_of(name: str, inputs=13) -> Shape:
    hidden, top, features, width = WIDTHS[name]
    return Shape((inputs, *hidden, width), (width + features * (features + 1) // 2, *top), features)


def assert_near(call, out):
    """To the float64 result, as the op's Spec has it."""
    exact = call.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    wanted = kernels.dlrm_forward(*exact.arguments(), backend="eager")
    (error,) = SPECS["dlrm_forward"].scale.errors(None, call, [wanted])
    assert ((out.double() - wanted).abs() <= error).all()


# ----------------------------------------------------------------------------------------------------------- the layout


def panels_of(weights: list[torch.Tensor]) -> torch.Tensor:
    """What lies in the panels, by a plain formula: for each block, step and warpgroup 64 outputs by 128 bytes of k."""
    of = 128 // weights[0].element_size()
    panels = []
    for block in range(BLOCKS):
        for layer in (1, 2, 4, 5):
            own = weights[layer].chunk(BLOCKS, int(layer in (2, 5)))[block]
            columns = own.shape[0] // 64
            parts = 4 // columns
            steps = -(-own.shape[1] // (of * parts))
            padded = torch.zeros(own.shape[0], steps * parts * of, dtype=own.dtype)
            padded[:, : own.shape[1]] = own
            for step, group in itertools.product(range(steps), range(4)):
                k = (group // columns * steps + step) * of
                panel = padded[group % columns * 64 :][:64, k : k + of].reshape(64, 8, of // 8)  # pieces of 16 bytes
                permuted = torch.stack([row[torch.arange(8) ^ number % 8] for number, row in enumerate(panel)])
                panels.append(permuted.flatten())
    return torch.cat(panels)


@pytest.mark.host
@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WIDTHS)
def test_weights_lie_in_panels(name, dtype):
    shape = shape_of(name)
    # Of numbers that tf32 and halves hold.
    weights = [(torch.randn(outputs, inputs) / 8).bfloat16().to(dtype) for inputs, outputs in shape.layers]
    biases = [torch.randn(outputs).bfloat16().to(dtype) for _, outputs in shape.layers]
    design = Pairs(shape, dtype, ROWS)
    with on_host():
        laid_out = cuda_launch.write_fragments(design, weights[0], weights, biases)
    panels = panels_of(weights)
    assert torch.equal(laid_out[: len(panels)], panels)
    padded = [torch.cat([tensor, tensor.new_zeros(-len(tensor) % 16)]) for tensor in (*biases, weights[-1][0])]
    end = torch.cat(padded)
    assert torch.equal(laid_out[-len(end) :], end)
    fragments, layers = laid_out[len(panels) : -len(end)], torch.cat([weights[0].flatten(), weights[3].flatten()])
    assert torch.equal(fragments[fragments != 0].sort().values, layers[layers != 0].sort().values)


@pytest.mark.host
@needs_compiler
def test_what_pair_py_computes_is_what_pair_layout_does(tmp_path):
    """The compiler compares them."""
    text = ""
    for name, dtype, inputs in itertools.product(WIDTHS, (torch.float32, torch.float16), (1, 13, 32)):
        for source in (pairs_source, lay_out_source):
            own = source(Pairs(shape_of(name, inputs), dtype, ROWS, 2 + inputs % 3)).text
            include = own[own.index("#include") : own.index("using T")]
            text += f"{include}namespace {name}_{dtype.itemsize}_{inputs}_{source.__name__} {{\n"
            text += own[own.index("using T") : own.index('extern "C"')] + "}\n"
    file = tmp_path / "models.cpp"
    file.write_text(text)
    command = ["g++", "-std=c++20", "-fsyntax-only", "-w", f"-I{runtime.KERNELS}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


# ---------------------------------------------------------------------------------------------------------- the kernel


class TestPairs(Contract):
    op = "dlrm_forward"

    @kernel_backend
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    def test_any_batch(self, backend, dtype, pairs):
        for rows in (0, 1, 31, 32, 33, 100, 200):  # three pairs: the last takes some a third tile
            call = model(rows=rows, dtype=dtype)
            out = kernels.dlrm_forward(*call.arguments(), backend=backend)
            assert_near(call, out)
            assert torch.equal(out, kernels.dlrm_forward(*call.arguments(), backend=backend))
        assert pairs

    @kernel_backend
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    @pytest.mark.parametrize("name", WIDTHS)
    def test_any_widths(self, backend, name, dtype, pairs):
        call = model(name, 45, inputs=32, dtype=dtype, activations=("tanh", "identity", "silu", "sigmoid"))
        assert_near(call, kernels.dlrm_forward(*call.arguments(), backend=backend))
        assert pairs or pairs_for(shape_of(name, 32), dtype, H100, 132) is None

    @kernel_backend
    def test_equal_rows_have_equal_results(self, backend, pairs):
        """Wherever they lie in a tile, and whichever warpgroup adds the parts of a sum up."""
        variant = (256, 128, 64), (512, 64, 1), ("relu", "relu", "relu", "identity")
        for dtype in TYPES:
            call = draw_model(Case((1,), dtype), 64, 13, 16, 9, variant, "", DEVICE, torch.int64, "tf32")
            dense, tables, indices, *others = call.arguments()
            dense[:], indices = dense[:1].clone(), [ids[:1].repeat(len(ids)) for ids in indices]
            out = kernels.dlrm_forward(dense, tables, indices, *others, backend=backend)
            assert (out == out[0]).all(), dtype
        assert pairs

    @kernel_backend
    @pytest.mark.parametrize("bags", ["open", "closed"])
    def test_bags_narrow_ids_and_what_is_not_aligned(self, backend, bags, pairs):
        call = model(rows=70, bags=bags, ids=torch.int32, dtype=torch.bfloat16)
        out = kernels.dlrm_forward(*call.arguments(), backend=backend)
        assert_near(call, out)

        def moved(tensor):
            return torch.cat([tensor.new_empty(1), tensor.flatten()])[1:].view(tensor.shape)

        dense, tables, indices, *others = call.arguments()
        apart = [torch.stack([ids, -ids - 1], 1)[:, 0] for ids in indices]
        again = kernels.dlrm_forward(moved(dense), [*map(moved, tables)], apart, *others, backend=backend)
        assert torch.equal(again, out)
        assert len(set(pairs)) == 2

    @kernel_backend
    def test_what_is_infinite_stays_in_its_rows(self, backend, pairs):
        call = model("middle", 40)
        arguments = call.arguments()
        for value in (float("inf"), float("nan")):
            arguments[0][3, 2] = value
            out = kernels.dlrm_forward(*arguments, backend=backend)
            wanted = kernels.dlrm_forward(*arguments, backend="eager")
            assert torch.equal(out.isfinite(), wanted.isfinite())
        assert pairs

    @kernel_backend
    def test_bad_ids_are_reported_and_count_as_zeros(self, backend, pairs):
        call = model(rows=40)
        dense, tables, indices, *others = call.arguments()
        for value in (len(tables[1]), -1, -(2**63)):
            wrong = [ids.clone() for ids in indices]
            wrong[1][35] = value
            with pytest.raises(IndexError, match=rf"dlrm_forward: id {value}, at position 35 of indices\[1\]"):
                told_at_once(backend, (dense, tables, wrong, *others))
        out = getattr(torch.ops.fused_kernels.dlrm_forward, backend)(*map(as_list, (dense, tables, wrong, *others)))
        with pytest.raises(IndexError):
            kernels.check_ids(wait=True)
        grown = [torch.cat([table, torch.zeros_like(table[:1])]) for table in tables]
        wrong[1][35] = len(tables[1])
        assert torch.equal(out, kernels.dlrm_forward(dense, grown, wrong, *others, backend=backend))
        assert pairs


# ------------------------------------------------------------------------------------------------------ what it keeps


# In which output it shows, and how: a line of pair.cuh, and what stands in its place.
BROKEN = {
    "out: the last bias is forgotten": ("activate<activation<6>>(sum + bias<6>(0))", "activate<activation<6>>(sum)"),
    "out: half of the last layer's numbers": ("sum = reduce_lanes<Sum>(sum, 32);", "sum = reduce_lanes<Sum>(sum, 16);"),
    "out: the last layer's numbers with a half's bits": (
        "sum += widen(value) * kept(net.last_weights + k);",
        "sum += __uint_as_float(__float_as_uint(widen(value)) & 0xffff0000u) * kept(net.last_weights + k);",
    ),
    "out: the sums of one block": (
        "return own_sum<l>(i, output) + received<l>(i, output);", "return own_sum<l>(i, output);"
    ),
    "out: a step of k too few": ("panel < product.panels)", "panel < product.panels - 1)"),
    "out: vectors of another row": (
        "own().template multiply<m>(first + share", "own().template multiply<m>((first ^ 1) + share"
    ),
    "bottom_values: of another row": (
        "keep_outputs<1>(values->bottom + layer<0>.outputs,", "keep_outputs<1>(values->bottom + layer<0>.outputs - 4,"
    ),
    "features: without the last pairs": ("features_columns>(layer<4>.from", "features_columns - 4>(layer<4>.from"),
    "top_values: without the last bias": (
        "values->top[row * top_columns + layer<4>.outputs + k] = value;",
        "values->top[row * top_columns + layer<4>.outputs + k] = value - bias<5>(k);",
    ),
}


class TestKept(Contract):
    op = "dlrm_forward_kept"

    @pytest.fixture(autouse=True)
    def _few_pairs(self, pairs):
        if DEVICE.type == "cuda" and architecture() != 90:
            pytest.skip("values are kept by the instructions of sm_90")

    def function(self, backend, in_place=False):
        return functools.partial(KEPT.call, backend)

    @every_backend
    def test_adversarial_cases(self, backend):
        check(self.op, self.function(backend), cases=self.cases(backend))

    @pytest.mark.slow
    @kernel_backend
    @pytest.mark.parametrize("broken", BROKEN)
    def test_a_broken_kernel_is_rejected(self, backend, broken, monkeypatch):
        line, wrong = BROKEN[broken]
        # A call that no other test makes: what was planned for a signature is kept, with its kernel.
        of_layers = [*itertools.product(KEPT_NAMES, repeat=2)][[*BROKEN].index(broken)]
        activations = *of_layers, "relu", "leaky_relu"
        own = replace(self.spec, calls=lambda case, device: [draw_kept(case, device, activations)])
        kernel = (runtime.KERNELS / "ops/dlrm/pair.cuh").read_text().replace("#pragma once", "")
        assert kernel.count(line) == 1
        kernel = kernel.replace(line, wrong)

        def source(design: Pairs) -> Source:
            right = pairs_source(design)
            return replace(right, text=right.text.replace('#include "ops/dlrm/pair.cuh"', kernel))

        monkeypatch.setattr(cuda_launch, "pairs_source", functools.cache(source))
        with pytest.raises(AssertionError, match=f"{broken.split()[0]} .* elements? (is|are) wrong"):
            check(self.op, self.function(backend), cases=[Case((40, 3))], spec=own)

    @kernel_backend
    def test_opcheck(self, backend):
        torch.library.opcheck(KEPT.overload(backend), self.overload_arguments(self.call(Case((9, 3)))))

    @kernel_backend
    def test_the_result_has_the_bits_of_the_kernel_that_keeps_nothing(self, backend, pairs):
        for activations in KEPT_ACTIVATIONS:
            call = draw_kept(Case((70, 3)), DEVICE, activations)
            dense, tables, indices, bottom, top, *widths = call.arguments()[:7]
            layers = [*zip(*views(bottom, widths[0]), strict=True), *zip(*views(top, widths[1]), strict=True)]
            plain = dense, tables, indices, None, *map(list, layers), *activations, "tf32"
            out, *_ = KEPT.call(backend, *call.arguments())
            assert torch.equal(out, kernels.dlrm_forward(*plain, backend=backend))
        assert [design.keeps for design in pairs] == [True, False] * 2

    @kernel_backend
    def test_bad_ids_are_reported_in_the_name_of_dlrm_forward(self, backend):
        dense, tables, indices, *others = self.call(Case((40, 3))).arguments()
        rows = torch.stack(indices, 1)
        rows[35, 1] = len(tables[1])

        def told():
            dlrm_forward_kept(dense, tables, rows, *others, backend=backend)
            kernels.check_ids(wait=True)

        with pytest.raises(IndexError, match=r"dlrm_forward: id \d+, at position 35 of indices\[1\]"):
            told()

    @every_backend
    def test_wrong_input(self, backend):
        call = self.call(Case((9, 3)))
        dense, tables, indices, bottom, _ = call.tensors
        for name, wrong, error, message in (
            ("dense", dense.double(), TypeError, "dense must be float32; got float64"),
            ("dense", dense[:, 1:], ValueError, r"dense must have shape \[B, 13\]; got \[9, 12\]"),
            ("dense", dense[1:], ValueError, "indices must be of 8 ids each"),
            ("tables", tables[1:], ValueError, "tables and indices must be one or more, as many; got 8 and 9"),
            ("indices", [ids.float() for ids in indices], TypeError, r"indices\[0\] must be int32 or int64"),
            ("bottom", bottom[1:], ValueError, r"bottom must have shape"),
            ("top", bottom, ValueError, r"top must have shape"),
            ("bottom_widths", "13-", ValueError, "bottom_widths must be two widths or more, such as 13-512-16"),
            ("top_widths", "60-128-64-1", ValueError, "top_widths must begin with 61, vector 0 and the pairs; got 60"),
            ("bottom_final", "gelu", ValueError, "bottom_final must be one of identity, relu, leaky_relu"),
        ):
            arguments = list(call.arguments())
            arguments[self.spec.arguments.index(name)] = wrong
            with pytest.raises(error, match=f"^{self.op}: {message}"):
                self.function(backend)(*arguments)

    @kernel_backend
    def test_a_model_that_pairs_do_not_take_is_refused(self, backend):
        dense, tables, indices, *_ = self.call(Case((9, 3))).tensors
        widths = "13-256-120-64-16", "61-128-64-1"
        buffers = [torch.zeros(elements(of_mlp), device=DEVICE) for of_mlp in widths]
        with pytest.raises(DLRMError, match="120 outputs of the bottom MLP's layer 2, and a pair takes"):
            KEPT.call(backend, dense, tables, indices, *buffers, *widths, *KEPT_ACTIVATIONS[0])


# ----------------------------------------------------------------------------------------------------------- what fits


def test_what_fits():
    for dtype in TYPES:
        design = pairs_for(MAIN, dtype, H100, 132)
        assert (design.stages, design.why_not(H100)) == (3 if dtype == torch.float32 else 4, "")
        assert pairs_for(MAIN, dtype, 99 * 1024, 132) is None
        assert pairs_for(MAIN, dtype, H100, 1) is None
    why = functools.partial(Pairs.why_not, shared_bytes=H100)
    other = replace(MAIN, bottom=(40, 500, 200, 60, 10), top=(361, 640, 300, 2), features=32)
    assert why(Pairs(other, torch.bfloat16, ROWS)) == (
        "200 outputs of the bottom MLP's layer 2, and a pair takes 128, 256, 512; "
        "60 outputs of the bottom MLP's layer 3, and a pair takes 64, 128, 256; "
        "640 outputs of the top MLP's layer 1, and a pair takes 128, 256, 512; "
        "300 outputs of the top MLP's layer 2, and a pair takes 64, 128, 256; "
        "2 outputs of the top MLP's layer 3, and a pair takes 1; "
        "500 outputs of the bottom MLP's layer 1, and a pair takes multiples of 256; "
        "vectors of 20 bytes, and a pair takes multiples of 16; 32 tables, and a pair takes at most 31"
    )
    assert why(Pairs(replace(MAIN, bottom=(40, *MAIN.bottom[1:])), torch.float32, ROWS)) == (
        "160 bytes of dense features, and a pair takes at most 128"
    )
    assert why(Pairs(replace(MAIN, bottom=(13, 64, 16)), torch.float32, ROWS)) == (
        "MLPs of 2 and 3 layers, and a pair takes 4 and 3"
    )
    wide = replace(MAIN, bottom=(13, 1024, 512, 256, 16))
    assert why(Pairs(wide, torch.float32, ROWS)).endswith(" bytes on chip, and a block has 232,448")


def test_the_times_that_were_measured_decide_who_keeps_values(monkeypatch):
    monkeypatch.setattr(choice, "why_not_kept", lambda *_: "")
    monkeypatch.setattr(choice, "multiprocessors", lambda _: 7)
    slower, quicker = (1.0, 2.0), (2.0, 1.0)  # parts, one kernel
    for kept, most in (
        ({1: (quicker,), 4: (quicker,)}, 12), ({1: (quicker,), 2: (slower,), 4: (quicker,)}, 3),
        ({1: (quicker, slower)}, 0),
    ):
        monkeypatch.setattr(choice, "KEPT", kept)
        choice.is_faster_kept.cache_clear()
        rows = range(1, 14 * ROWS)
        faster = [choice.is_faster_kept("", "", 9, count, DEVICE) for count in rows]
        assert faster == [count <= most * ROWS for count in rows]
    choice.is_faster_kept.cache_clear()


@pytest.mark.parametrize(
    ("shape", "dtype", "faster"),
    [(MAIN, torch.float32, [1, 240, 241, 2047, 2048]), (MAIN, torch.bfloat16, [1, 240, 241, 2047, 2048]),
     (Shape((13, 32, 16), (367, 32, 1), 26), torch.float32, [1, 240]),
     (Shape((13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1), 26), torch.bfloat16, [1, 240, 2048]),
     (Shape((13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1), 26), torch.float32, [])],
)  # fmt: skip
def test_the_times_that_were_measured_decide_who_is_whole(monkeypatch, shape, dtype, faster):
    for name, value in (("architecture", 90), ("shared_memory", H100), ("multiprocessors", 132)):
        monkeypatch.setattr(choice, name, lambda _, value=value: value)
    kept = choice.design_for, choice.is_faster
    for function in kept:
        function.cache_clear()
    sizes = [tuple(torch.Size((b, a)) for a, b in itertools.pairwise(of_mlp)) for of_mlp in (shape.bottom, shape.top)]
    model = *sizes, shape.features, False, dtype, "tf32", DEVICE
    rows = [1, 240, 241, 2047, 2048, 2049, 16384, 65536, 1 << 20]
    assert [count for count in rows if choice.is_faster(*model, count)] == faster
    for function in kept:
        function.cache_clear()


def test_the_nearest_weights_count_and_the_times_on_both_sides(monkeypatch):
    design, (slower, quicker) = Pairs(MAIN, torch.float32, ROWS), ((1.0, 2.0), (2.0, 1.0))
    weights = 4 * design.fragments
    times = {weights // 8: {1000: quicker, 4000: slower}, 4 * weights: {1000: slower, 4000: quicker}}
    monkeypatch.setattr(choice, "CAPTURED", {"Pairs": times})
    monkeypatch.setattr(choice, "design_for", lambda *_: design)
    choice.is_faster.cache_clear()
    rows = [240, 241, 1000, 1001, 3999, 4000, 4001]
    assert [count for count in rows if choice.is_faster(count)] == [240, 4000, 4001]
    choice.is_faster.cache_clear()


def test_pairs_are_for_batches_that_clusters_do_not_take(pairs):
    design = functools.partial(cuda_launch.design_of, MAIN, torch.float32, "tf32", shared_bytes=H100, blocks=132)
    assert isinstance(design(arch=90, batch=241), Pairs)
    assert not isinstance(design(arch=90, batch=240), Pairs)
    assert type(design(arch=100, batch=241)) is Tiles
    assert type(cuda_launch.design_of(MAIN, torch.float32, "tf32", 90, H100)) is Tiles, "one multiprocessor"


@needs_nvrtc
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [MAIN, replace(MAIN, bags="open", id_bytes=4, aligned=False)], ids=str)
def test_pairs_compile(shape, dtype, tmp_path):
    design = pairs_for(shape, dtype, H100, 132)
    keeping = replace(design, keeps=True)
    for program in (*map(pairs_source, (design, keeping)), *map(lay_out_source, (design, keeping))):
        image = Path(nvrtc.compiled(nvrtc.Kernel(program, 90), tmp_path).path).read_bytes()
        assert registers(image) <= 128
        if (lines := sass(image)) is not None:
            counts = opcodes(lines)
            assert not {"STL", "LDL"} & counts.keys()
            assert ("HGMMA" in counts) == (program.cluster == 2), "products of warpgroups"
