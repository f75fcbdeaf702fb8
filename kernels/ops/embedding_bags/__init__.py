__all__ = ["EmbeddingBags", "check_ids", "embedding_bags", "out_of_range_count"]
# Where those are that are not in op.py.
MODULES = {"EmbeddingBags": "module", "check_ids": "reported", "out_of_range_count": "reported"}
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{features} tables of width {width}, {rows:,} rows, {ids} ids, {numbers}"
STOPS = "at more than 8 tables: a launch for each; with `combo_kernels` one for up to 8"
