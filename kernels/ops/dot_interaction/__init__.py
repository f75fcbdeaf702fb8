__all__ = ["dot_interaction"]
# Where torch.compile stops, for the front page.
STOPS = "at `bmm`: the vectors, [B, F + 1, D], and all their products, [B, F + 1, F + 1], go through memory"
