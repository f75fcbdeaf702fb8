"""The four look-ups: one declaration, and the public functions."""

from torch import Tensor

from ...dispatch import checks
from ...dispatch.op import Op, Prepared, like
from ...dispatch.signature import Signature
from . import eager

# For each mode the public function, by whose name messages speak, and what it must be given.
LOOKUPS = {
    "text": ("embedding_lookup", "table [rows, H]: floating; image: None; audio: None; multimodal_indices: None"),
    "image": (
        "embedding_lookup_with_image",
        "table [rows, H]: floating; image [I, H]: table; audio: None; multimodal_indices: None",
    ),
    "deepstack": (
        "assemble_deepstack_embedding",
        "table: None; features [rows, H]: floating; audio: None; multimodal_indices: None",
    ),
    "multimodal": (
        "embedding_lookup_multimodal",
        "table [rows, H]: floating; image? [I, H]: table; audio? [A, H]: table; multimodal_indices [..., N]: integer",
    ),
}
ARGUMENTS = {mode: Signature.of(op, f"ids [..., N]: integer; {sources}") for mode, (op, sources) in LOOKUPS.items()}
COUNTER = Signature.of("vocabulary", "ids [...]: integer; out_of_range [1]: int64")


def check(op: str, *arguments) -> None:
    """Raise unless the mode's tensors, and no others, are there, of one width and dtype, on the ids' device."""
    *tensors, mode, vocab_size, _, _ = arguments
    checks.is_one_of(op, "mode", mode, LOOKUPS)
    ARGUMENTS[mode].check(tensors)
    if vocab_size < 0:
        raise ValueError(f"{LOOKUPS[mode][0]}: vocab_size must not be negative; got {vocab_size}")


def _out(named) -> tuple:
    source = named["image"] if named["table"] is None else named["table"]
    return (*named["ids"].shape, source.shape[1]), source.dtype


def _by_row(backend: str, named) -> tuple[Tensor, Tensor, Tensor]:
    """The ids in the order of the rows that they name, which torch.sort gives and no kernel can call."""
    return eager.by_row(eager.choices(*(named[name] for name in OP.forms[""].names)))


OP = Op(
    "vocabulary",
    "(Tensor ids, Tensor? table, Tensor? image, Tensor? audio, Tensor? multimodal_indices, str mode, int vocab_size, "
    "int image_token_id, int audio_token_id) -> Tensor out",
    eager=eager.vocabulary,
    check=check,
    outputs={"out": _out},
    saves=("ids", "table", "image", "audio", "multimodal_indices"),  # of the tables the shapes alone are read
    gradients={name: like(name, dtype_of="grad_out") for name in ("table", "image", "audio")},
    prepare=Prepared(("sorted_rows", "order", "starts"), _by_row),
    backends=("triton",),  # it moves rows, and a kernel in CUDA moves them no faster
)


def vocabulary(
    ids: Tensor, table: Tensor | None, image: Tensor | None, audio: Tensor | None, multimodal_indices: Tensor | None,
    mode: str, vocab_size: int = 0, image_token_id: int = 0, audio_token_id: int = 0,
    *, out_of_range: Tensor | None = None, backend: str = "auto",
) -> Tensor:
    """What the four public functions call: eager.vocabulary on a backend, and the count of what was out of range."""
    arguments = ids, table, image, audio, multimodal_indices, mode, vocab_size, image_token_id, audio_token_id
    if out_of_range is not None:
        COUNTER.check((ids, out_of_range))
    out = OP.call(backend, *arguments)
    if out_of_range is not None:
        out_of_range.add_(eager.misses(ids, eager.choices(*arguments), mode, vocab_size).sum())
    return out


def embedding_lookup(
    ids: Tensor, table: Tensor, *, out_of_range: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """table[id] for each id, zeros where the id is not in [0, V).

    Args:
        ids: [...], int32 or int64; any values.
        table: [V, H], float32, float16, bfloat16 or float64; any strides.
        out_of_range: int64 [1], to which the number of ids that are out of range is added: for whoever's tokenizer and
            table may disagree. It takes a few small kernels more, which torch.compile makes one.
        backend: "triton", "eager", or "auto": Triton for CUDA tensors, else eager.

    Returns [..., H], contiguous, of the table's dtype: bits of its rows. Differentiable once, in reverse mode, with
    respect to the table: a dense gradient, duplicates added in float32 (float64) in the order of their positions, so
    that every run gives the same bits. The backward reads the ids again and sorts
    them: they must stay as they are until then, and not be made in inference mode.

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
    checks.is_tensor("assemble_deepstack_embedding", "features", features)
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
    then, -1 included. If both tokens are equal, the image's counts.
    """
    image_token_id, audio_token_id = (
        None if token is None else checks.integer("embedding_lookup_multimodal", name, token)
        for name, token in (("image_token_id", image_token_id), ("audio_token_id", audio_token_id))
    )
    image, audio = (None if token is None else tensor for tensor, token in
                    ((image, image_token_id), (audio, audio_token_id)))
    return vocabulary(
        ids, table, image, audio, multimodal_indices, "multimodal", 0, image_token_id or 0, audio_token_id or 0,
        out_of_range=out_of_range, backend=backend,
    )
