__all__ = ["embedding_bags_adagrad_", "embedding_bags_rowwise_adagrad_", "embedding_bags_sgd_"]
