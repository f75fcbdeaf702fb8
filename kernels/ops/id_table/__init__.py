__all__ = ["IdTable", "expand_table_ids", "get_table_range", "table_lookup"]
# Where those are that are not in op.py.
MODULES = {"IdTable": "table"}
# Where torch.compile stops, for the front page.
STOPS = "before it: PyTorch has no such table"
