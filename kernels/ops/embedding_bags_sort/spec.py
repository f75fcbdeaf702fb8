"""What `kernels.check` takes embedding_bags_sort through; integers are compared exactly."""

import torch

from ...check import Call, Case, Dimension, Spec
from ...check.cases import LAYOUTS
from .eager import embedding_bags_sort

HEIGHTS = (3, 1, 500, 7, 70000)


def _calls(case, device):
    """case.shape [B, F]: one id a feature, then as many ids in ragged bags; some name no row of their table."""
    batch, features = case.shape
    heights = torch.tensor([HEIGHTS[f % len(HEIGHTS)] for f in range(features)], dtype=torch.int64)
    row_offsets = torch.cat([torch.zeros(1, dtype=torch.int64), heights.cumsum(0)]).to(device)
    rows = int(heights.sum())
    ids = case.integers(1, 2**20, device)
    ids = ids % (heights + 1).to(device)  # the height itself names no row
    yield Call(f"{case}", (ids, row_offsets, None), (rows, -1, False))
    yield Call(f"{case} padding", (ids.int(), row_offsets, None), (rows, 0, False))
    cuts = torch.randint(ids.numel() + 1, (batch * features + 1,), generator=torch.Generator().manual_seed(2))
    cuts = cuts.sort().values
    cuts[0], cuts[-1] = 0, ids.numel() if len(cuts) > 1 else 0
    flat = ids.reshape(-1)[: int(cuts[-1])]
    for dtype in (torch.int32, torch.int64):
        yield Call(f"{case} bags", (flat, row_offsets, cuts.to(dtype).to(device)), (rows, 2, dtype == torch.int64))


def _cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(0, 3), (5, 0), (1, 1), (7, 3), (256, 5), (300, 2), (2048, 1), (2049, 2), (4097, 1), (13000, 2)]
    return [Case(shape) for shape in shapes] + [Case((17, 4), layout=layout) for layout in LAYOUTS[1:]]


SPEC = Spec(
    embedding_bags_sort,
    _calls,
    outputs=("keys", "positions", "bags", "lengths"),
    cases=_cases,
    dimensions=(Dimension(lambda rows: Case((rows, 2))), Dimension(lambda features: Case((1, features)), large=64)),
    wide_cases=lambda names: [Case((65536, 26)), Case((4096, 26)), Case((16384, 26))],
)
