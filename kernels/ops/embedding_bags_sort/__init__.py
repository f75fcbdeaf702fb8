__all__ = ["embedding_bags_sort"]
