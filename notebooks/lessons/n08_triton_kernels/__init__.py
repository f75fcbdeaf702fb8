"""A pointwise Triton kernel from its six lines to a general one, what each step costs, and why."""
