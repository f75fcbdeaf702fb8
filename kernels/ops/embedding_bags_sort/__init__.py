__all__ = ["embedding_bags_sort"]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "the ids of {rows:,} rows, {ids}"
STOPS = "at `sort`: PyTorch's operator, for all tables' ids at once"
