__all__ = ["embedding_bags_apart"]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{features} tables that lie apart, of width {width}, {rows:,} rows, {ids} ids, {numbers}"
STOPS = "at more than 8 tables: a launch for each; with `combo_kernels` one for up to 8"
