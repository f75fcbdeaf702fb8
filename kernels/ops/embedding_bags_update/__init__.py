__all__ = ["embedding_bags_adagrad_", "embedding_bags_rowwise_adagrad_", "embedding_bags_sgd_"]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rule}, tables of width {width}, {rows:,} rows, {ids} ids"
STOPS = "at the sparse gradient: a row for each id goes through memory, to PyTorch's sort and sum"
