__all__ = ["fold_outer_weight", "outer_linear", "outer_linear_folded"]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rows:,} rows of {columns} × {columns} products, {outputs}, {numbers}"
STOPS = "at `addmm`: the outer products, [B, C²], go through memory"
