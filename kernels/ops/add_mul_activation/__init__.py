__all__ = ["add_mul_activation", "add_mul_activation_"]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rows:,} rows of {columns}, {activation}, {numbers}"
STOPS = "nowhere: one kernel"
