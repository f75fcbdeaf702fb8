__all__ = ["IdTable", "expand_table_ids", "get_table_range", "table_lookup"]
# Where those are that are not in op.py.
MODULES = {"IdTable": "table"}
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{batch:,} rows' {ids} ids, looked up in a table of {table} features"
STOPS = "before it: PyTorch has no such table"
