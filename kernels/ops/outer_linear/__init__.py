__all__ = ["fold_outer_weight", "outer_linear", "outer_linear_folded"]
