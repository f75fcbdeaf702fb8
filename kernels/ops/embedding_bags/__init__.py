__all__ = ["check_ids", "embedding_bags", "out_of_range_count"]
