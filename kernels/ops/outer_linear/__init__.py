__all__ = ["fold_outer_weight", "outer_linear", "outer_linear_folded"]
# Where torch.compile stops, for the front page.
STOPS = "at `addmm`: the outer products, [B, C²], go through memory"
