__all__ = ["add_relu", "add_relu_"]
