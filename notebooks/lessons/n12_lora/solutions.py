"""Answers to the puzzles of 12_lora.ipynb, a section a puzzle."""

# %% forward
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ A) @ B, multiplier, "relu")


solved = puzzles.attempt("forward", fused_forward)

# %% gradients
def gradients(x, A, B, grad, multiplier):
    grad_B = (multiplier * (x @ A)).T @ grad
    grad_A = x.T @ (multiplier * (grad @ B.T))
    return grad_A, grad_B


solved = puzzles.attempt("gradients", gradients)

# %% kept
def kept(wanted, arrived):
    error = (arrived - wanted).norm() / wanted.norm()
    projection = (arrived * wanted).sum() / (wanted * wanted).sum()
    return error, projection


solved = puzzles.attempt("kept", kept)

# %% many
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = adapter[:, None] == torch.arange(len(A), device=x.device)
    return torch.einsum("bnr,nrc->bc", thin * own[:, :, None], B)


solved = puzzles.attempt("many", many_adapters)
