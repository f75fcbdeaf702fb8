__all__ = ["lookup_interact", "lookup_interact_gradients"]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rows:,} rows' ids of {features} tables of width {columns}, {ids}, {numbers}"
STOPS = "at more than 8 tables, and at `bmm`: the vectors, [B, F + 1, D], and all their products go through memory"
