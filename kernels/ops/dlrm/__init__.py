__all__ = ["DLRMError", "dlrm_forward"]
# Where those are that are not in op.py.
MODULES = {"DLRMError": "shape"}
# For the front page: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{model}, {rows:,} rows"
STOPS = "at every look-up and every product: a launch for each"
