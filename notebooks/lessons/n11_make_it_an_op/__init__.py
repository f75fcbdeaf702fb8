"""What makes a kernel an op: by torch.library, and in C++."""
