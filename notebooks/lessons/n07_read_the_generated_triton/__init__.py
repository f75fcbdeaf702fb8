"""The Triton that torch.compile generates for sigmoid(x + 0.5·y + bias): its kernel, its variants, its record."""
