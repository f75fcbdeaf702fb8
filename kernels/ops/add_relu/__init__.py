__all__ = ["add_relu", "add_relu_"]
# For the front page: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rows:,} rows of {columns}, {numbers}"
STOPS = "nowhere: one kernel"
