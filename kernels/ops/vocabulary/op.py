"""The four look-ups: one declaration, and the public functions."""

import torch
from torch import Tensor

from kernels.dispatch import checks
from kernels.dispatch.op import Op
from kernels.ops.vocabulary import eager

INTEGERS = (torch.int32, torch.int64)
# What each look-up must be given beside the ids, by the declaration's names.
NEEDS = {
    "text": ("table",),
    "image": ("table", "image"),
    "deepstack": ("image",),
    "multimodal": ("table", "multimodal_indices"),
}
MAY_HAVE = {"multimodal": ("image", "audio")}
# By which name messages speak of it.
FUNCTIONS = {
    "text": "embedding_lookup",
    "image": "embedding_lookup_with_image",
    "deepstack": "assemble_deepstack_embedding",
    "multimodal": "embedding_lookup_multimodal",
}


def check(
    op: str, ids: Tensor, table: Tensor | None, image: Tensor | None, audio: Tensor | None,
    multimodal_indices: Tensor | None, mode: str, vocab_size: int, image_token_id: int, audio_token_id: int,
    sorted_rows: Tensor | None = None, order: Tensor | None = None, starts: Tensor | None = None,
    one_dtype: bool = True,
) -> None:  # fmt: skip
    """Raise unless the mode's tensors, and no others, are there, of one width, on the ids' device and, unless autocast
    is still to see to that, of one dtype."""
    checks.is_one_of(op, "mode", mode, NEEDS)
    op = FUNCTIONS[mode]
    checks.has_dtype(op, "ids", ids, INTEGERS)
    given = dict(table=table, image=image, audio=audio, multimodal_indices=multimodal_indices)
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) and (name in NEEDS[mode] or tensor is not None):
            raise TypeError(f"{op}: {_called(name, mode)} must be a tensor; got {type(tensor).__name__}")
        if tensor is not None and name not in (*NEEDS[mode], *MAY_HAVE.get(mode, ())):
            raise ValueError(f"{op}: {name} must be None in the mode {mode!r}")
    if multimodal_indices is not None:
        checks.has_dtype(op, "multimodal_indices", multimodal_indices, INTEGERS)
        checks.is_beside(op, "multimodal_indices", multimodal_indices, ids)
        _has_shape(op, "multimodal_indices", multimodal_indices, ids.shape, "as ids has")
    del given["multimodal_indices"]
    sources = {_called(name, mode): tensor for name, tensor in given.items() if tensor is not None}
    first = next(iter(sources))
    for name, tensor in sources.items():
        checks.has_dtype(op, name, tensor)
        checks.is_beside(op, name, tensor, ids)
        if tensor.dim() != 2:
            raise ValueError(f"{op}: {name} must have shape [rows, H]; got {list(tensor.shape)}")
        if one_dtype:
            checks.belongs_to(op, name, tensor, first, sources[first], (tensor.shape[0], sources[first].shape[1]))
    if vocab_size < 0:
        raise ValueError(f"{op}: vocab_size must not be negative; got {vocab_size}")
    if sorted_rows is not None:
        rows = sum(tensor.shape[0] for tensor in sources.values())
        for name, tensor, shape in (
            ("sorted_rows", sorted_rows, (ids.numel(),)),
            ("order", order, (ids.numel(),)),
            ("starts", starts, (rows + 1,)),
        ):
            checks.has_dtype(op, name, tensor, INTEGERS if name == "sorted_rows" else INTEGERS[1:])
            checks.is_beside(op, name, tensor, ids)
            _has_shape(op, name, tensor, shape, "for these ids and tables")


def _called(name: str, mode: str) -> str:
    """An argument's name in the public function."""
    return "features" if (name, mode) == ("image", "deepstack") else name


def _has_shape(op: str, name: str, tensor: Tensor, shape, why: str) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{op}: {name} must have shape {list(shape)}, {why}; got {list(tensor.shape)}")


def _out(given) -> tuple:
    source = given["image"] if given["table"] is None else given["table"]
    return (*given["ids"].shape, source.shape[1]), source.dtype


def _like(name: str):
    """Of an argument that may not be there, for which nothing is allocated."""

    def gradient(given) -> tuple:
        if given["starts"] is None:
            raise ValueError("vocabulary: a gradient needs sorted_rows, order and starts, which eager.by_row gives")
        return (0,) if given[name] is None else given[name].shape, given["grad_out"].dtype

    return gradient


# The backward needs the ids in the order of the rows that they name, which torch.sort gives. A kernel cannot call it,
# so the public functions do where a gradient is recorded (eager.by_row), and the op takes the result along. The
# backward reads no table: of those only the shapes count, which as integers would be constants of a compiled graph.
OP = Op(
    "vocabulary",
    "(Tensor ids, Tensor? table, Tensor? image, Tensor? audio, Tensor? multimodal_indices, str mode, int vocab_size, "
    "int image_token_id, int audio_token_id, Tensor? sorted_rows, Tensor? order, Tensor? starts) -> Tensor out",
    eager=lambda *arguments: eager.vocabulary(*arguments[:9]),
    check=check,
    outputs={"out": _out},
    saves=("table", "image", "audio", "sorted_rows", "order", "starts"),
    gradients={"table": _like("table"), "image": _like("image"), "audio": _like("audio")},
    auto="cuda",
)


def vocabulary(
    ids: Tensor,
    table: Tensor | None,
    image: Tensor | None,
    audio: Tensor | None,
    multimodal_indices: Tensor | None,
    mode: str,
    vocab_size: int = 0,
    image_token_id: int = 0,
    audio_token_id: int = 0,
    *,
    out_of_range: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """What the four public functions call: eager.vocabulary on a backend, and the count of what was out of range."""
    arguments = (
        ids, table, image, audio, multimodal_indices, mode, vocab_size, image_token_id, audio_token_id,
    )  # fmt: skip
    grouping, with_gradient = (None, None, None), _has_gradient(backend, ids, table, image, audio)
    if with_gradient or out_of_range is not None:
        check(OP.name, *arguments, one_dtype=False)
        chosen = eager.choices(*arguments)
    if with_gradient:
        grouping = eager.by_row(chosen)
    if out_of_range is not None:
        _check_counter(out_of_range, ids)
    out = OP.call(backend, *arguments, *grouping)
    if out_of_range is not None:
        out_of_range.add_(eager.misses(ids, chosen, mode, vocab_size).sum())
    return out


def _has_gradient(backend: str, ids: Tensor, *sources: Tensor | None) -> bool:
    """Whether one of our backwards will be asked for; eager's is autograd's own."""
    if not torch.is_grad_enabled() or backend == "eager" or not isinstance(ids, Tensor):
        return False
    if backend == "auto" and not ids.is_cuda:
        return False
    return any(isinstance(source, Tensor) and source.requires_grad for source in sources)


def _check_counter(out_of_range: Tensor, ids: Tensor) -> None:
    if not isinstance(out_of_range, Tensor):
        raise TypeError(f"{OP.name}: out_of_range must be a tensor; got {type(out_of_range).__name__}")
    checks.has_dtype(OP.name, "out_of_range", out_of_range, INTEGERS[1:])
    if isinstance(ids, Tensor):
        checks.is_beside(OP.name, "out_of_range", out_of_range, ids)
    _has_shape(OP.name, "out_of_range", out_of_range, (1,), "a counter")


def embedding_lookup(
    ids: Tensor, table: Tensor, *, out_of_range: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """table[id] for each id, zeros where the id is not in [0, V).

    Args:
        ids: [...], int32 or int64; any values.
        table: [V, H], float32, float16, bfloat16 or float64; any strides.
        out_of_range: int64 [1], to which the number of ids that are out of range is added: for whoever's tokenizer and
            table may disagree. It takes a few small kernels more, which torch.compile makes one.
        backend: "triton", "cuda", "eager", or "auto": CUDA for CUDA tensors, else eager.

    Returns [..., H], contiguous, of the table's dtype: bits of its rows. Differentiable once, in reverse mode, with
    respect to the table: a dense gradient, duplicates added in float32 (float64) in the order of their positions, so
    that every run gives the same bits. With a gradient recorded, the forward sorts the ids.

    Raises:
        TypeError: a dtype, or what is no tensor. ValueError: a shape, a device, an unknown backend.
        RuntimeError: a backend this machine lacks.
    """
    return vocabulary(ids, table, None, None, None, "text", out_of_range=out_of_range, backend=backend)


def embedding_lookup_with_image(
    ids: Tensor, table: Tensor, image: Tensor, *, out_of_range: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """table[id] for ids in [0, V), image[id - V] for ids in [V, V + I), zeros for all others.

    As embedding_lookup; image: [I, H], of the table's dtype, differentiable as the table is.
    """
    return vocabulary(ids, table, image, None, None, "image", out_of_range=out_of_range, backend=backend)


def assemble_deepstack_embedding(
    ids: Tensor, features: Tensor, vocab_size: int, *, out_of_range: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """features[id - vocab_size] for ids in [vocab_size, vocab_size + F), zeros elsewhere.

    What a vision model's deeper layers add to the hidden states at an image's positions. As embedding_lookup; features:
    [F, H], differentiable. A text's id, in [0, vocab_size), is not out of range.
    """
    return vocabulary(
        ids, None, features, None, None, "deepstack", vocab_size, out_of_range=out_of_range, backend=backend
    )


def embedding_lookup_multimodal(
    ids: Tensor,
    table: Tensor,
    multimodal_indices: Tensor,
    image: Tensor | None = None,
    audio: Tensor | None = None,
    image_token_id: int | None = None,
    audio_token_id: int | None = None,
    *,
    out_of_range: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """image[multimodal_indices[i]] where ids[i] is image_token_id, likewise audio, else table[ids[i]]; zeros where that
    row does not exist.

    As embedding_lookup; multimodal_indices: int32 or int64, of the ids' shape, read at those positions only. image
    [I, H] and audio [A, H] are differentiable too. A modality whose tensor or token is None is off: no id is special
    then, -1 included. Of two equal tokens the image's counts.
    """
    image, audio = (None if token is None else tensor for tensor, token in
                    ((image, image_token_id), (audio, audio_token_id)))  # fmt: skip
    return vocabulary(
        ids, table, image, audio, multimodal_indices, "multimodal", 0, image_token_id or 0, audio_token_id or 0,
        out_of_range=out_of_range, backend=backend,
    )  # fmt: skip
