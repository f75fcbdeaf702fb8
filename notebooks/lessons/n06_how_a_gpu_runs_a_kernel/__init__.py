"""How a GPU runs a kernel: small kernels that show one thing each, what they take on a GPU, and pictures of it."""
