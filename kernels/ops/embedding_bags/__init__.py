__all__ = ["check_ids", "embedding_bags", "out_of_range_count"]
# Where torch.compile stops, for the front page.
STOPS = "at the tables: a launch for each"
