"""The shape of a DLRM whose forward is one kernel: what the kernel's source is generated from; and whether a row of it
fits into a lane (source.py). For larger models tile.py takes the same shape."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

ACTIVATIONS = ("identity", "relu", "leaky_relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")
PRECISIONS = ("ieee", "tf32")

# What a thread may hold of a row in its registers, of which it has 255; the rest is for addresses and sums under way.
# Where so many warps share a row, its vectors lie in shared memory, and each thread takes there what it multiplies:
# 280 numbers then compile to 170 registers, and nothing is spilled. lecture_19.json in traces/results/h200 has that
# model, 16 tables of width 16, at 2,048 rows: 9.3 µs, where torch.compile with combo_kernels takes 42.9. One of 440
# numbers spills and takes 19.3 µs, against 51.7, but writes out more products and takes more shared memory than there
# are below, and was measured for no other number of rows. With fewer warps a compiled kernel spills from some 232 on.
MOST_NUMBERS, MOST_SHARED_NUMBERS, SHARING_WARPS = 160, 280, 4
# Multiply-adds of a row. They are written out one by one: NVRTC takes some half a millisecond for each, and the
# multiprocessor has to fetch them.
MOST_PRODUCTS = 6144
SHARED_BYTES = 48 * 1024  # of a block, that need not be asked for
PARAMETER_BYTES = 4096  # of a kernel's arguments
ROWS_OF_A_BLOCK = 32
# Multiply-adds with pairs that a warp takes before another one shares them, and the most warps of a block.
PRODUCTS_OF_A_WARP, MOST_WARPS = 512, 8


class DLRMError(ValueError):
    """A model that fits into none of dlrm_forward's kernels."""


@dataclass(frozen=True)
class Shape:
    """A model, as far as its kernel's source hangs on it; the batch and the tables' heights are no part of it.

    bottom: widths of the bottom MLP, (13, 8, 4): dense features first, D last. top: of the top MLP, (10, 8, 1): D and a
    number a pair first. activations: between the bottom's layers, after its last; the same of the top.
    features: F, the tables. bags: "" for one id a feature and row; "closed" where offsets end with the number of ids;
    "open" where they do not (PyTorch's default).
    id_bytes, offset_bytes: 4 or 8. aligned: whether every table begins at a multiple of 16 bytes.
    """

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    features: int
    activations: tuple[str, str, str, str] = ("relu", "relu", "relu", "identity")
    bags: str = ""
    id_bytes: int = 8
    offset_bytes: int = 8
    aligned: bool = True

    @property
    def width(self) -> int:
        """D, of a vector."""
        return self.bottom[-1]

    @property
    def vectors(self) -> int:
        """The dense one, and one a table."""
        return self.features + 1

    @property
    def pairs(self) -> int:
        return self.vectors * (self.vectors - 1) // 2

    @property
    def warps(self) -> int:
        """The warps of a block: they share its rows, and each adds up a part of the pairs, of which there are more than
        a warp does while the others wait for memory."""
        products = self.pairs * (self.width + self.top[1])
        return min(MOST_WARPS, 1 << max(0, (products - 1) // PRODUCTS_OF_A_WARP).bit_length())

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of all layers, the bottom's first."""
        return [*itertools.pairwise(self.bottom), *itertools.pairwise(self.top)]

    @property
    def looked_up(self) -> int:
        """Tables whose rows one thread looks up."""
        return -(-self.features // self.warps)

    @property
    def numbers_of_layers(self) -> int:
        """What a thread holds at once of a row, but for the pairs: rows of tables, of bags the sums too, beside two
        layers of the bottom; two layers of the top."""
        rows = self.looked_up * self.width * (2 if self.bags else 1)
        bottom = max(map(sum, itertools.pairwise(self.bottom))) + rows
        return max(bottom, self.top[1], *map(sum, itertools.pairwise(self.top[1:])))

    @property
    def numbers(self) -> int:
        """What a thread holds at once of a row, at most: that, or all vectors beside the sums of the top's first
        layer."""
        return max(self.numbers_of_layers, self.vectors * self.width + self.top[1])

    @property
    def most_numbers(self) -> int:
        """The budget for them."""
        is_shared = self.warps >= SHARING_WARPS and self.numbers_of_layers <= MOST_NUMBERS
        return MOST_SHARED_NUMBERS if is_shared else MOST_NUMBERS

    @property
    def products(self) -> int:
        """Multiply-adds of a row, in all warps."""
        return sum(inputs * outputs for inputs, outputs in self.layers) + self.pairs * self.width

    @property
    def places(self) -> dict[str, int]:
        """Where in shared memory things begin, in floats, each at a multiple of 16 bytes; "end": how much it is."""
        sizes = {f"layer_{i}": (inputs + 1) * outputs for i, (inputs, outputs) in enumerate(self.layers)}
        sizes["dense"] = ROWS_OF_A_BLOCK * (self.bottom[0] | 1)
        if self.warps > 1:
            sizes["rows_of_all"] = ROWS_OF_A_BLOCK * self.features * self.width
            sizes["sums_of_all"] = ROWS_OF_A_BLOCK * self.warps * self.top[1]
        ends = itertools.accumulate((-(-size // 4) * 4 for size in sizes.values()), initial=0)
        return dict(zip([*sizes, "end"], ends, strict=True))

    @property
    def shared_bytes(self) -> int:
        return 4 * self.places["end"]

    @property
    def parameter_bytes(self) -> int:
        """Eight an argument: pointers, heights, numbers of ids."""
        a_feature = 6 if self.bags else 4
        return 8 * (a_feature * self.features + 2 * len(self.layers) + 4)

    def why_not(self) -> str:
        """Why its kernel is not generated, with the budget; "" if it is."""
        budgets = (
            (self.numbers, self.most_numbers, "numbers of a row per thread, but the budget is"),
            (self.products, MOST_PRODUCTS, "products per row, but the generated code writes out at most"),
            (self.shared_bytes, SHARED_BYTES, "bytes of shared memory per block, but there are"),
            (self.parameter_bytes, PARAMETER_BYTES, "bytes of arguments, but a kernel takes at most"),
        )
        found = [f"{needed:,} {what} {most:,}" for needed, most, what in budgets if needed > most]
        return "; ".join(found + ["no dense features"] * (not self.bottom[0]))
