__all__ = ["add_relu", "add_relu_"]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rows:,} rows of {columns}, {numbers}"
STOPS = "nowhere: one kernel"
