__all__ = ["dot_interaction"]
