__all__ = ["DLRMError", "dlrm_forward"]
# Where those are that are not in op.py.
MODULES = {"DLRMError": "shape"}
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "`{model}`, {rows:,} rows, {numbers}"
STOPS = "at every product, and at more than 8 look-ups: a launch for each"
