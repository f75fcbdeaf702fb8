"""The look-ups against eager, on every backend that this machine has; and ids that no vocabulary has."""

import contextlib
import functools
import gc
import importlib
import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels

from ... import runtime
from ...check import Call, Case, check_gradients, gradients
from ...check.contract import DEVICE, GPU, Dispatch, Gradients, OnGpu, Values, every_backend, kernel_backend
from . import eager
from .op import OP, vocabulary

SLOW_INTERPRETED = tuple(
    f"test_gradients_of_{what}[torch.{dtype}"
    for what in ("every_shape", "every_option")
    for dtype in ("float16", "float64")
)
INTERPRETED = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
TEXTS, IMAGES, AUDIOS = 7, 3, 2
# Beside every edge, the ends of both integer types, and 2^32 + 5, which as 32 bits would be row 5.
HOSTILE = [-1, 0, TEXTS - 1, TEXTS, TEXTS + IMAGES - 1, TEXTS + IMAGES, -(2**31), 2**31 - 1]
HOSTILE += [2**32 + 5, -(2**32) + 5, -(2**63), 2**63 - 1, 5, -1, 2]
IDS = {torch.int32: [id for id in HOSTILE if -(2**31) <= id < 2**31], torch.int64: HOSTILE}


def rows_of(ids, table=None, image=None, audio=None, indices=None, first=TEXTS, image_token=None, audio_token=None):
    """What must come out, id by id: a row, or None for zeros."""
    for i, id in enumerate(ids):
        source, row = table, id
        if indices is None and image is not None and id >= first:
            source, row = image, id - first
        elif image is not None and image_token is not None and id == image_token:
            source, row = image, indices[i]
        elif audio is not None and audio_token is not None and id == audio_token:
            source, row = audio, indices[i]
        yield source[row] if source is not None and 0 <= row < len(source) else None


def expected(rows, columns, dtype=torch.float32):
    zeros = torch.zeros(columns, dtype=dtype, device=DEVICE)
    return torch.stack([zeros if row is None else row for row in rows])


def sources(columns, dtype=torch.float32):
    return tuple(torch.randn(rows, columns, device=DEVICE).to(dtype) for rows in (TEXTS, IMAGES, AUDIOS))


class TestVocabulary(Values, Gradients, Dispatch, OnGpu):
    op = "vocabulary"

    def function(self, backend, in_place=False):
        return functools.partial(vocabulary, backend=backend)

    def kinds(self, case=None):
        """With every tensor; with the fewest, no table, there is a slow test."""
        return [call for call in self.variants(case) if call.options[0] == "multimodal"]

    @pytest.mark.slow
    @kernel_backend
    def test_among_torchs_ops_without_a_table(self, backend, monkeypatch):
        monkeypatch.setattr(type(self), "kinds", lambda self, case=None: [self.variants(case)[2]])
        assert self.kinds()[0].options[0] == "deepstack"
        self.test_opcheck(backend)
        self.test_compile_keeps_one_graph(backend, False)
        self.test_gradcheck(backend)

    @pytest.mark.slow
    @kernel_backend
    def test_an_exported_program_loads_in_a_fresh_process(self, backend, tmp_path):
        super().test_an_exported_program_loads_in_a_fresh_process(backend, tmp_path)

    @every_backend
    def test_wrong_input(self, backend):
        (ids, table, image, audio, indices), _ = (call := self.variants()[-1]).tensors, call.options
        lookup, with_image, deepstack, multimodal = (
            functools.partial(getattr(kernels, name), backend=backend)
            for name in ("embedding_lookup", "embedding_lookup_with_image", "assemble_deepstack_embedding",
                         "embedding_lookup_multimodal")
        )
        half, other, narrow = table.half(), image.to("meta"), image[:, 1:]
        all_of = (ids, table, indices, image, audio, 4, 6)
        for function, arguments, error, message in (
            (lookup, (None, table), TypeError, "ids must be a tensor; got NoneType"),
            (lookup, (ids, None), TypeError, "table must be a tensor; got NoneType"),
            (lookup, (ids, "2"), TypeError, "table must be a tensor; got str"),
            (lookup, (ids.float(), table), TypeError, "ids must be int32 or int64; got float32"),
            (lookup, (ids.flatten()[0], table), ValueError, r"ids must have shape \[..., N\]; got \[\]"),
            (lookup, (ids, table.int()), TypeError, "table must be float32, .*; got int32"),
            (lookup, (ids, table[0]), ValueError, r"table must have shape \[rows, H\]; got \[24\]"),
            (lookup, (ids, table.to("meta")), ValueError, "table must be on ids's device, (cpu|cuda:0); got meta"),
            (with_image, (ids, table, None), TypeError, "image must be a tensor; got NoneType"),
            (with_image, (ids, half, image), TypeError, "image must have table's dtype, float16; got float32"),
            (with_image, (ids, table, narrow), ValueError, r"image must have shape \[I, 24\], for table.*\[5, 23\]"),
            (deepstack, (ids, None, 9), TypeError, "features must be a tensor; got NoneType"),
            (deepstack, (ids, other, 9), ValueError, "features must be on ids's device, (cpu|cuda:0); got meta"),
            (deepstack, (ids, image, -9), ValueError, "vocab_size must not be negative; got -9"),
            (multimodal, (ids, table, None), TypeError, "multimodal_indices must be a tensor; got NoneType"),
            (multimodal, (ids, table, indices.short()), TypeError, "multimodal_indices must be int32 or int64"),
            (multimodal, (ids, table, indices[:-1]), ValueError, "multimodal_indices must have shape .*, for ids of"),
            (multimodal, (*all_of[:4], audio.double(), 4, 6), TypeError, "audio must have table's dtype"),
        ):
            with pytest.raises(error, match=f"^(vocabulary|{function.func.__name__}): {message}"):
                function(*arguments)
        with pytest.raises(ValueError, match="mode must be one of text, image, deepstack, multimodal; got 'video'"):
            self.function(backend)(ids, table, None, None, None, "video")
        with pytest.raises(ValueError, match="embedding_lookup: image must be None; got Tensor"):
            self.function(backend)(ids, table, image, None, None, "text")
        for counter, error, message in (
            (torch.zeros(1), TypeError, "out_of_range must be int64; got float32"),
            (torch.zeros(2, dtype=torch.int64), ValueError, r"out_of_range must have shape \[1\]; got \[2\]"),
            (torch.zeros(1, dtype=torch.int64, device="meta"), ValueError, "out_of_range must be on ids's device"),
        ):
            with pytest.raises(error, match=f"vocabulary: {message}"):
                lookup(ids, table, out_of_range=counter if counter.is_meta else counter.to(DEVICE))

    @pytest.mark.parametrize("where", ["meta", "fake"])
    @pytest.mark.parametrize("named", [None, "eager", "triton"])
    def test_shapes_without_values(self, named, where):
        """Nothing runs on "meta", so no backend is missing there; a fake tensor is of a device, whose backends are."""
        mode = FakeTensorMode() if where == "fake" else contextlib.nullcontext()
        if where == "fake" and named and runtime.backends(DEVICE)[named]:
            pytest.skip(runtime.backends(DEVICE)[named])
        options = {} if named is None else {"backend": named}
        for call in self.variants():
            values = [tensor for tensor in call.tensors if tensor is not None]
            with mode:
                tensors = [mode.from_tensor(v) if where == "fake" else v.to("meta") for v in values]
                wanted = [tensor.requires_grad_() for tensor in tensors if tensor.is_floating_point()]
                left = iter(tensors)
                inputs = [None if tensor is None else next(left) for tensor in call.tensors]
                out = vocabulary(*inputs, *call.options, **options)
                gradients = torch.autograd.grad(out, wanted, torch.empty_like(out))
            expected = eager.vocabulary(*call.arguments())
            assert (out.shape, out.dtype, out.device) == (expected.shape, expected.dtype, tensors[0].device)
            assert [g.shape for g in gradients] == [tensor.shape for tensor in wanted]
            assert {g.device for g in gradients} == {out.device}

    @every_backend
    def test_what_stands_for_an_integer(self, backend):
        """On every backend what C++ takes for one: what has an __index__ of 64 bits, and a tensor of one element."""

        class Two:
            def __index__(self):
                return 2

        ids, features = torch.tensor([1, 2, 4], device=DEVICE), sources(8)[1]
        look_up = functools.partial(kernels.assemble_deepstack_embedding, ids, features, backend=backend)
        for two in (2, np.int64(2), np.int32(2), np.array(2), torch.tensor(2), torch.tensor([2.7]), Two()):
            assert torch.equal(look_up(two), torch.stack([torch.zeros_like(features[0]), features[0], features[2]]))
        assert torch.equal(look_up(True), look_up(1))
        for wrong in (2.0, np.float64(2), "2", None, torch.tensor([2, 3])):
            message = f"vocabulary: vocab_size must be an integer; got {type(wrong).__name__}"
            with pytest.raises(TypeError, match=f"^{message}$"):
                look_up(wrong)
        with pytest.raises(ValueError, match=f"^vocabulary: vocab_size must fit 64 bits; got {2**63}$"):
            look_up(2**63)

    # ---------------------------------------------------------------------------------------------- what ids may be

    @every_backend
    @pytest.mark.parametrize("dtype", IDS, ids=str)
    @pytest.mark.parametrize("columns", [1, 7, 8, 1023, 4097])
    def test_hostile_ids(self, backend, dtype, columns):
        table, image, audio = sources(columns)
        ints = IDS[dtype]
        ids, named = torch.tensor(ints, dtype=dtype, device=DEVICE), {"backend": backend}
        out = kernels.embedding_lookup(ids, table, **named)
        assert torch.equal(out, expected(rows_of(ints, table), columns))
        out = kernels.embedding_lookup_with_image(ids, table, image, **named)
        assert torch.equal(out, expected(rows_of(ints, table, image), columns))
        for first in (TEXTS, 0, 2**63 - 2):  # beside the last one, first + IMAGES is no int64
            out = kernels.assemble_deepstack_embedding(ids, image, first, **named)
            assert torch.equal(out, expected(rows_of(ints, None, image, first=first), columns))
        # An index is as hostile as an id, where it is read.
        for tokens in ((5, 2), (-1, 5), (None, -1), (2**32 + 5, -(2**63)), (None, None), (2, 2)):
            for where in (HOSTILE, [1] * len(HOSTILE)):
                indices = where[: len(ints)]
                out = kernels.embedding_lookup_multimodal(
                    ids, table, torch.tensor(indices, device=DEVICE), image, audio, *tokens, **named
                )
                rows = rows_of(ints, table, image, audio, indices, TEXTS, *tokens)
                assert torch.equal(out, expected(rows, columns))

    @every_backend
    def test_a_modality_is_off_without_its_tensor_or_its_token(self, backend):
        table, image, _ = sources(8)
        ids = torch.tensor([2, 5, -1], device=DEVICE)
        indices = torch.zeros(3, dtype=torch.int32, device=DEVICE)
        multimodal = functools.partial(kernels.embedding_lookup_multimodal, ids, table, indices, backend=backend)
        text = kernels.embedding_lookup(ids, table, backend=backend)
        assert torch.equal(multimodal(), text)
        assert torch.equal(multimodal(image), text)
        assert torch.equal(multimodal(image_token_id=5), text)
        assert torch.equal(multimodal(image, image_token_id=5)[1], image[0])
        # With a tensor of no rows the modality is on, and every index misses.
        assert not multimodal(image[:0], image_token_id=5)[1].any()

    @every_backend
    def test_every_shape_of_ids_and_empty_tables(self, backend):
        table = torch.randn(TEXTS, 8, device=DEVICE)
        for shape in ((0,), (3, 0), (2, 3), (2, 1, 4)):
            ids = torch.randint(-1, TEXTS + 1, shape, device=DEVICE)
            out = kernels.embedding_lookup(ids, table, backend=backend)
            want = expected(rows_of(ids.flatten().tolist(), table), 8) if ids.numel() else table[:0]
            assert out.shape == (*shape, 8)
            assert torch.equal(out.view(-1, 8), want)
        ids = torch.tensor([0, -1, 1], device=DEVICE)
        assert not kernels.embedding_lookup(ids, table[:0], backend=backend).any()
        assert torch.equal(kernels.embedding_lookup_with_image(ids, table[:0], table, backend=backend)[0], table[0])
        assert not kernels.assemble_deepstack_embedding(ids, table[:0], 0, backend=backend).any()

    @every_backend
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_a_nan_row_stays_where_it_is(self, backend, dtype):
        """Row 0 is what a miss would read first: it must be selected away, not multiplied by zero."""
        table, image, audio = sources(24, dtype)
        for source in (table, image, audio):
            source[0] = math.nan
        ids = torch.tensor([-1, 0, TEXTS + IMAGES, TEXTS, 1, 2**40], device=DEVICE)
        out = kernels.embedding_lookup_with_image(ids, table, image, backend=backend)
        assert out.isnan().all(1).tolist() == [False, True, False, True, False, False]
        assert not out[[0, 2, 5]].any()
        indices = torch.tensor([0, -1, 0, 0, AUDIOS, 0], device=DEVICE)
        ids = torch.tensor([5, 5, -7, 0, 6, 6], device=DEVICE)
        out = kernels.embedding_lookup_multimodal(ids, table, indices, image, audio, 5, 6, backend=backend)
        assert out.isnan().all(1).tolist() == [True, False, False, True, False, True]
        assert not out[[1, 2, 4]].any()

    @kernel_backend
    def test_a_nan_gradient_of_a_miss_goes_nowhere(self, backend):
        call = Call("", (torch.tensor([-1, 0, TEXTS, 0], device=DEVICE), sources(8)[0], None, None, None), ("text",))
        incoming = torch.randn(4, 8, device=DEVICE)
        incoming[0], incoming[2] = math.nan, math.inf
        grad = gradients(self.function(backend), call, (False, True), incoming)[1]
        assert torch.equal(grad[0], incoming[1] + incoming[3])
        assert not grad[1:].any()

    # ------------------------------------------------------------------------------------------------- the counter

    @every_backend
    @pytest.mark.parametrize("dtype", IDS, ids=str)
    def test_what_is_out_of_range_is_counted(self, backend, dtype):
        table, image, audio = sources(8)
        ints = IDS[dtype]
        ids, counter = torch.tensor(ints, dtype=dtype, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
        indices = torch.tensor([i - 2 for i in range(len(ints))], device=DEVICE)
        for function, arguments, rows in (
            (kernels.embedding_lookup, (table,), rows_of(ints, table)),
            (kernels.embedding_lookup_with_image, (table, image), rows_of(ints, table, image)),
            (kernels.embedding_lookup_multimodal, (table, indices, image, audio, 5, 2),
             rows_of(ints, table, image, audio, indices.tolist(), TEXTS, 5, 2)),
            # A text's id is in range there, though it names no feature.
            (kernels.assemble_deepstack_embedding, (image, TEXTS), [0 <= id < TEXTS + IMAGES or None for id in ints]),
        ):
            counter.fill_(10)
            out = function(ids, *arguments, backend=backend, out_of_range=counter)
            assert torch.equal(out, function(ids, *arguments, backend=backend))
            assert counter.tolist() == [10 + sum(row is None for row in rows)]

    @every_backend
    def test_a_vocabulary_that_ends_where_int64_does(self, backend):
        """What is counted, and the gradient: ids that name a feature, and one that is far below all."""
        first, features = 2**63 - 2, sources(8)[1].requires_grad_()
        ids = torch.tensor([first, -(2**63), 2**63 - 1, first - 1, first], device=DEVICE)
        counter, grad = torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.randn(5, 8, device=DEVICE)
        out = kernels.assemble_deepstack_embedding(ids, features, first, out_of_range=counter, backend=backend)
        assert counter.item() == 1
        (grad_features,) = torch.autograd.grad(out, features, grad)
        assert torch.equal(grad_features, torch.stack([grad[0] + grad[4], grad[2], torch.zeros_like(grad[0])]))

    @kernel_backend
    def test_what_ids_name_is_found_once(self, backend, monkeypatch):
        table, ids, counter = sources(8)[0].requires_grad_(), torch.tensor([1, -1], device=DEVICE), []
        original = eager.choices
        monkeypatch.setattr(eager, "choices", lambda *arguments: counter.append(1) or original(*arguments))
        misses = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        kernels.embedding_lookup(ids, table, out_of_range=misses, backend=backend)
        assert (len(counter), misses.item()) == (1, 1)

    @kernel_backend
    def test_the_counter_compiles(self, backend):
        table = sources(8)[0].requires_grad_()
        ids, counter = torch.tensor(HOSTILE, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
        compiler = "inductor" if DEVICE.type == "cuda" else "aot_eager"

        @functools.partial(torch.compile, fullgraph=True, backend=compiler)
        def step(ids, table, counter):
            return kernels.embedding_lookup(ids, table, out_of_range=counter, backend=backend).sum()

        step(ids, table, counter).backward()
        step(ids, table, counter)
        assert counter.item() == 2 * sum(not 0 <= id < TEXTS for id in HOSTILE)
        assert table.grad[:, 0].tolist() == [HOSTILE.count(row) for row in range(TEXTS)]

    # -------------------------------------------------------------------------------------------------- duplicates

    @kernel_backend
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
    @pytest.mark.parametrize("same", [300, 128, 129, 63])
    def test_one_id_in_the_whole_batch(self, backend, same, dtype):
        """Whole pieces, and parts of them on either side."""
        ids = torch.randint(0, TEXTS, (310,), device=DEVICE)
        ids[5 : 5 + same] = TEXTS - 1 if same == 300 else 3  # the last row of all, or one with others behind it
        call = Call(f"{same} alike", (ids, sources(40, dtype)[0], None, None, None), ("text",))
        grad = torch.randn(310, 40, device=DEVICE).to(dtype)
        check_gradients(self.op, self.function(backend), call, (False, True), grad)

    @INTERPRETED
    @pytest.mark.parametrize("piece", [4])
    def test_gradients_of_many_pieces(self, monkeypatch, piece):
        launcher = importlib.import_module("kernels.ops.vocabulary.triton_launch")
        monkeypatch.setattr(launcher, "backward", functools.partial(launcher.backward, piece=piece))
        for call in self.calls(Case((141, 40))):
            check_gradients(self.op, self.function("triton"), call, self.needed(call), self.grads(call))

    @kernel_backend
    def test_a_gradient_of_the_overload_itself(self, backend):
        """What the backward needs of a sort it makes: the caller of the overload gives nothing more."""
        call = self.call()
        table = call.tensors[1].requires_grad_()
        grad = torch.ones_like(OP.overload(backend)(*call.arguments()))
        (actual,) = torch.autograd.grad(OP.overload(backend)(*call.arguments()), table, grad)
        (want,) = torch.autograd.grad(eager.vocabulary(*call.arguments()), table, grad)
        torch.testing.assert_close(actual, want)

    # ------------------------------------------------------------------------------------------------------ on a GPU

    @GPU
    @kernel_backend
    @pytest.mark.heavy
    def test_more_than_2_to_the_31_elements(self, backend):
        rows, columns = 2**31 // 4096 + 100, 4096
        gc.collect()
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info()[0] < 2.5 * rows * columns * 2:
            pytest.skip(f"needs {2.5 * rows * columns * 2 / 2**30:.0f} GiB of free GPU memory")
        table = torch.zeros(rows, columns, dtype=torch.float16, device=DEVICE)
        ids = torch.tensor([0, rows - 1, rows, 2**19 + 3, rows - 1], device=DEVICE)
        named = ids[[0, 1, 3]]
        table[named] = torch.randn(3, columns, device=DEVICE).half()
        table.requires_grad_()
        out = self.function(backend)(ids, table, None, None, None, "text")
        assert torch.equal(out[[0, 1, 3, 4]], table[ids[[0, 1, 3, 4]]])
        assert not out[2].any()
        grad = torch.randn(5, columns, device=DEVICE).half()
        (of_table,) = torch.autograd.grad(out, table, grad)
        assert torch.equal(of_table[named], torch.stack([grad[0], (grad[1].float() + grad[4].float()).half(), grad[3]]))
        of_table[named] = 0
        assert not of_table.any()
        del table, out, of_table
        many = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
        many[-1] = 1
        table = torch.randn(2, columns, device=DEVICE).half()
        out = self.function(backend)(many, table, None, None, None, "text")
        assert torch.equal(out[-1], table[1])
        assert torch.equal(out[-2], table[0])


def test_eager_reads_what_the_table_of_modes_says():
    """The reference itself, against a loop over the ids."""
    for call in TestVocabulary().calls(Case((60, 8))):
        ids, table, image, audio, indices = call.tensors
        mode, first, *tokens = call.options
        tokens = tokens if mode == "multimodal" else (None, None)
        indices = None if indices is None else indices.tolist()
        rows = rows_of(ids.tolist(), table, image, audio, indices, first if table is None else len(table), *tokens)
        assert torch.equal(eager.vocabulary(*call.arguments()), expected(rows, 8))


@pytest.mark.parametrize("rows", [2**15 - 1, 2**15, 2**16 + 1])
def test_rows_are_grouped_where_their_numbers_outgrow_16_bits(rows):
    ids = torch.tensor([rows - 1, 5, -1, rows, 5, 2**15 - 2, rows - 1, 0], device=DEVICE)
    table = torch.zeros(rows, 1, device=DEVICE)
    sorted_rows, order, starts = eager.by_row(eager.choices(ids, table, None, None, None, "text", 0, 0, 0))
    keys = torch.where((ids >= 0) & (ids < rows), ids, rows)
    assert sorted_rows.dtype == torch.int32
    assert sorted_rows.tolist() == sorted(keys.tolist()) == keys[order].tolist()
    assert starts.tolist() == [sum(keys.tolist()[i] < row for i in range(len(ids))) for row in range(rows + 1)]
