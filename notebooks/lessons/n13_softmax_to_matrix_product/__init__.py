"""From row softmax to a matrix product: the kernels of each step, what was measured of them, and their pictures."""
