__all__ = ["embedding_bags_adagrad_", "embedding_bags_rowwise_adagrad_", "embedding_bags_sgd_"]
# Where torch.compile stops, for the front page.
STOPS = "at the sparse gradient: a row for each id goes through memory, to PyTorch's sort and sum"
