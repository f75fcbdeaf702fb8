__all__ = ["embedding_bags_sort"]
# Where torch.compile stops, for the front page.
STOPS = "at `sort`: PyTorch's operator, for all tables' ids at once"
