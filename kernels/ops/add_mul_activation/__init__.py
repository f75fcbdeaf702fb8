__all__ = ["add_mul_activation", "add_mul_activation_"]
