__all__ = ["embedding_bags_apart"]
# For the front page: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{features} tables that lie apart, of width {width}, {rows:,} rows, {ids} ids, {numbers}"
STOPS = "at the tables: beyond 8 of them a launch for each"
