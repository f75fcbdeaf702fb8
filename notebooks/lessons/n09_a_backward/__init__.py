"""A pointwise kernel's backward: its sums over rows step by step, their order, what a backward reads."""
