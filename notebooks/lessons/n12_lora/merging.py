"""What is left of LoRA's change in bfloat16, by the way it is applied. Every rounding is made by hand, in float64, so
that the numbers are the same on any machine. The text of the functions is the notebook's: a test compares them."""

import functools

import torch

WIDTH, ROWS, RANK, MULTIPLIER = 256, 2048, 8, 2.0
STDS = (1e-1, 1e-2, 1e-3, 3e-4, 1e-4)  # of B


def bf16(values):  # rounded to bfloat16
    return values.bfloat16().double()


def applied(std):  # std of B -> the wanted change of x Wᵀ, and the change that each way gives
    random = torch.Generator().manual_seed(0)
    sizes = (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, RANK), (RANK, WIDTH)
    x, W, A, B = (torch.randn(size, generator=random, dtype=torch.float64) for size in sizes)
    x, W, A, B = bf16(x), bf16(W / WIDTH**0.5), bf16(A / WIDTH**0.5), bf16(std * B)
    linear, change = x @ W.T, MULTIPLIER * (A @ B).T
    y = MULTIPLIER * (bf16(x @ A) @ B)
    outputs = {
        "eager": bf16(bf16(linear) + bf16(y)),
        "merged": bf16(x @ bf16(W + change).T),
        "one product": bf16(linear + y),
    }
    return x @ change.T, {way: out - linear for way, out in outputs.items()}


def projection(wanted, arrived):
    return float((arrived * wanted).sum() / (wanted * wanted).sum())


@functools.cache
def projections(std: float) -> dict[str, float]:
    """By way, for B of this standard deviation."""
    wanted, arrived = applied(std)
    return {way: projection(wanted, change) for way, change in arrived.items()}
