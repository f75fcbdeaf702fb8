"""The lesson on the Triton that torch.compile generates for sigmoid(x + 0.5·y + bias): variants, record, pictures."""
