"""out[i] = the row that ids[i] names, or zeros if it names none: four look-ups in plain PyTorch, the reference.

    mode         id                                 row
    text         0 <= id < V                        table[id]
    image        0 <= id < V                        table[id]
                 V <= id < V + I                    image[id - V]
    deepstack    V <= id < V + I                    image[id - V]                 (zeros where the text is)
    multimodal   id == image_token_id               image[multimodal_indices[i]]
                 id == audio_token_id               audio[multimodal_indices[i]]
                 any other, 0 <= id < V             table[id]

with table [V, H], image [I, H], audio [A, H] and N ids. Bytes: N rows read and N rows written, 2 N H size, and the
ids. Plain PyTorch goes over N rows for each source anew: a gather, 2 N H size, and a choice between what it found and
what was chosen so far, 3 N H size (2 for the first source, beside which zeros stand). So one source costs 4 N H size,
twice what must be moved, two 9, three 14.
"""

import torch
from torch import Tensor

# A triple for each source: its tensor, the row that each id names in it, and whether the id names this source at all.
Choices = list[tuple[Tensor, Tensor, Tensor]]


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
) -> Tensor:
    """ids [...] → [..., H], contiguous. vocab_size: V where there is no table. A tensor that is None is never named."""
    sources = choices(ids, table, image, audio, multimodal_indices, mode, vocab_size, image_token_id, audio_token_id)
    out = sources[0][0].new_zeros(())
    for source, rows, hit in sources:
        if len(source):
            chosen = torch.where(hit, rows, 0)  # row 0 for a miss, which is selected away below
            found = source.index_select(0, chosen.flatten()).view(*ids.shape, source.shape[1])
            out = torch.where(hit[..., None], found, out)
    return out.expand(*ids.shape, sources[0][0].shape[1]).contiguous()


def choices(
    ids: Tensor,
    table: Tensor | None,
    image: Tensor | None,
    audio: Tensor | None,
    multimodal_indices: Tensor | None,
    mode: str,
    vocab_size: int,
    image_token_id: int,
    audio_token_id: int,
) -> Choices:
    """What each id names, of the sources that are there: at most one of them."""
    ids = ids.long()
    first = vocab_size if table is None else table.shape[0]
    found, is_text = [], None
    if mode == "multimodal":
        indices = multimodal_indices.long()
        for source, token in ((image, image_token_id), (audio, audio_token_id)):
            if source is not None:
                chosen = ids == token if is_text is None else (ids == token) & is_text
                found.append((source, indices, chosen & (indices >= 0) & (indices < source.shape[0])))
                is_text = ids != token if is_text is None else is_text & (ids != token)
    elif image is not None:
        rows = ids - first  # which wraps round only where ids are below `first`; first + image.shape[0] might, too
        found.append((image, rows, (ids >= first) & (rows < image.shape[0])))
    if table is not None:
        hit = (ids >= 0) & (ids < first)
        found.insert(0, (table, ids, hit if is_text is None else hit & is_text))
    return found


def misses(ids: Tensor, sources: Choices, mode: str, vocab_size: int) -> Tensor:
    """Whether each id is out of range: it names no row, and is none of the text's ids where those are left out."""
    named = (ids >= 0) & (ids < vocab_size) if mode == "deepstack" else torch.zeros_like(ids, dtype=torch.bool)
    for _, _, hit in sources:
        named = named | hit
    return ~named


def by_row(sources: Choices) -> tuple[Tensor, Tensor, Tensor]:
    """The positions of the ids, grouped by the row that they name: what a gradient of the rows is summed from.

    All sources' rows are numbered through, R in all, and R stands for no row. Returns

        sorted_rows  [N]      those that the ids name, ascending, int32 if they fit
        order        [N]      the positions of these ids; ascending for each row, since the sort is stable: this fixes
                              in which order duplicates are added, so that every run gives the same bits
        starts       [R + 1]  where each row begins in them

    It costs a sort of N keys (some 30 µs for the 8192 of a prompt, on an H200; the gradient of a table [32000, 4096] in
    float16 takes 61 µs to write), and R + 1 binary searches. Atomic additions would need no sort, but the table cleared
    before, and would add in another order in every run.
    """
    rows = sum(source.shape[0] for source, _, _ in sources)
    keys, first = rows, 0
    for source, named, hit in sources:
        keys = torch.where(hit, named + first if first else named, keys)
        first += source.shape[0]
    dtype = torch.int32 if rows < 2**31 else torch.int64
    # A radix sort goes over the keys once for every eight bits that they have.
    sorted_rows, order = keys.flatten().to(torch.int16 if rows < 2**15 else dtype).sort(stable=True)
    sorted_rows = sorted_rows.to(dtype)
    starts = torch.searchsorted(sorted_rows, torch.arange(rows + 1, dtype=dtype, device=order.device))
    return sorted_rows, order, starts


def forward_bytes(count: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes that a look-up must move: a row in and a row out for each id. The ids themselves are 8 bytes a row."""
    return 2 * count * columns * dtype.itemsize


def backward_bytes(count: int, columns: int, dtype: torch.dtype, rows: int) -> int:
    """Bytes that a backward must move: the gradient of the output in, and a dense one of `rows` rows out."""
    return (count + rows) * columns * dtype.itemsize
