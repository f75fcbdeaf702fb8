"""Answers to the puzzles of 11_make_it_an_op.ipynb, a section a puzzle."""

# %% schema
schema = "(Tensor(a!) total, Tensor x, float scale) -> ()"
solved = puzzles.attempt("schema", schema)

# %% fake
def fake(x):
    return torch.empty(x.shape[0], x.shape[1] // 2, dtype=torch.float32, device=x.device)


solved = puzzles.attempt("fake", fake)

# %% gradient
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    x, w, out = ctx.saved_tensors
    passed = torch.where(out <= 0, 0, grad)
    return passed * w, (passed * x).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% graph
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / y.max().clamp(min=1)


solved = puzzles.attempt("graph", scaled)
