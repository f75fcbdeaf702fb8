"""Answers to the puzzles of 01_dlrm_from_scratch.ipynb, a section a puzzle."""

# %% mlp
def my_mlp(x, weights, biases):
    for weight, bias in zip(weights, biases, strict=True):
        x = torch.relu(x @ weight.T + bias)
    return x


solved = puzzles.attempt("mlp", my_mlp)

# %% look_up
def my_look_up(tables, ids):
    vectors = []
    for f, table in enumerate(tables):
        rows = (ids[:, f] + 1) % (len(table) - 1)
        vectors.append(table[rows])
    return torch.stack(vectors, dim=1)


solved = puzzles.attempt("look_up", my_look_up)

# %% interaction
def my_interaction(dense, sparse):
    vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)
    i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
    products = vectors @ vectors.mT
    return torch.cat([dense, products[:, i, j]], dim=1)


solved = puzzles.attempt("interaction", my_interaction)

# %% moved
def my_bytes(rows, widths, fused):
    numbers = sum(a * b + b for a, b in pairwise(widths))  # weights and biases
    if fused:
        return 4 * (rows * (widths[0] + widths[-1]) + numbers)
    layers = sum(a + b for a, b in pairwise(widths))  # in and out of each product
    relus = sum(2 * b for b in widths[1:])
    return 4 * (rows * (layers + relus) + numbers)


solved = puzzles.attempt("moved", my_bytes)
