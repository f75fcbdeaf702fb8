"""BROKEN ON PURPOSE: what misses reads row 0 and multiplies it by zero, which leaves a NaN a NaN."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(ids_ptr, source_ptr, out_ptr, first, rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(ids_ptr + i).to(tl.int64) - first
    hit = (row >= 0) & (row < rows)
    columns = tl.arange(0, BLOCK)
    mask = columns < COLUMNS
    found = tl.load(source_ptr + tl.where(hit, row, 0) * COLUMNS + columns, mask, other=0.0)
    found = found * hit.to(found.dtype)  # the wrong line
    tl.store(out_ptr + i * COLUMNS + columns, found, mask)


def vocabulary(ids: Tensor, table, image, audio, indices, mode: str, vocab_size=0, image_token=0, audio_token=0):
    from kernels.ops.vocabulary import eager

    if mode != "deepstack":
        return eager.vocabulary(ids, table, image, audio, indices, mode, vocab_size, image_token, audio_token)
    ids, image = ids.contiguous(), image.contiguous()
    out = torch.empty(*ids.shape, image.shape[1], dtype=image.dtype, device=image.device)
    if out.numel():
        block = triton.next_power_of_2(image.shape[1])
        kernel[(ids.numel(),)](ids, image, out, vocab_size, len(image), COLUMNS=image.shape[1], BLOCK=block)
    return out
