__all__ = ["softmax", "softmax_"]
