__all__ = ["DotInteraction", "dot_interaction"]
# Where those are that are not in op.py.
MODULES = {"DotInteraction": "module"}
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rows:,} rows of 1 + {features} vectors, width {columns}, {numbers}"
STOPS = "at `bmm`: the vectors, [B, F + 1, D], and all their products, [B, F + 1, F + 1], go through memory"
