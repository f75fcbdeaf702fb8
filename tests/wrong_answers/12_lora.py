"""Wrong answers to the puzzles of 12_lora.ipynb, and unusual right ones; format: tests/test_puzzles.py."""

# %% forward: the roles are swapped -> ^not yet: .*(expected[\s\S]*Which of the two products is scaled)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue((x @ A) @ B, bias, x @ W.T, multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: the bias twice -> ^not yet: .*(expected[\s\S]*bias counts once)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(nn.functional.linear(x, W, bias), bias, (x @ A) @ B, multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: no multiplier -> ^not yet: .*(expected[\s\S]*is scaled)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ A) @ B)


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: multiplied twice -> ^not yet: .*(expected[\s\S]*is scaled)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, multiplier * (x @ A) @ B, multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: no activation -> ^not yet: .*(expected[\s\S]*activation comes last)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ A) @ B, multiplier, "identity")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: activated too early -> ^not yet: .*(expected[\s\S]*activation comes last)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, torch.relu((x @ A) @ B), multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: W as it lies -> ^not yet: .*(RuntimeError: mat1 and mat2)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W, bias, (x @ A) @ B, multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: A B first -> ^not yet: .*(right, but mm makes a tensor of \[24, 20\], in `return epi[\s\S]*brackets)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, x @ (A @ B), multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: merged at each call -> ^not yet: .*(right, but mm makes a tensor of \[24, 20\])
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ (W.T + multiplier * (A @ B)), bias, x.new_zeros(len(x), len(W)), 1.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: y scaled by a pass -> ^not yet: .*(right, but mul is a pass over the output)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, multiplier * ((x @ A) @ B), 1.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: in place, which is a pass too -> ^not yet: .*(right, but mul_ is a pass over the output)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, ((x @ A) @ B).mul_(multiplier), 1.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: a cheat: eager's formula, without the epilogue -> ^not yet: .*(right, but (mul|add) is a pass)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return torch.relu(x @ W.T + bias + multiplier * ((x @ A) @ B))


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: the epilogue twice -> ^not yet: .*(right, but the epilogue was called 2 times)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    total = epilogue(x @ W.T, bias, (x @ A) @ B, multiplier, "identity")
    return epilogue(total, torch.zeros_like(bias), total, 0.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: does nothing -> ^not yet: .*(expected)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return x.new_empty(len(x), len(W))


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: the bias by the product, thin x A scaled
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    thin = multiplier * (x @ A)
    return epilogue(torch.addmm(bias, x, W.T), torch.zeros_like(bias), thin @ B, activation="relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% gradients: that of W first -> ^not yet: .*(right, but \w+ makes a tensor of \[24, 20\][\s\S]*rank comes in first)
def gradients(x, A, B, grad, multiplier):
    of_W = multiplier * (x.T @ grad)
    return of_W @ B.T, A.T @ of_W


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: from left to right -> ^not yet: .*(right, but \w+ makes a tensor of \[24, 20\][\s\S]*brackets)
def gradients(x, A, B, grad, multiplier):
    return multiplier * (x.T @ grad @ B.T), multiplier * ((x @ A).T @ grad)


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: not scaled -> ^not yet: .*(grad_A[\s\S]*Both gradients are scaled)
def gradients(x, A, B, grad, multiplier):
    return x.T @ (grad @ B.T), (x @ A).T @ grad


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: one of them not scaled -> ^not yet: .*(grad_B[\s\S]*Both gradients are scaled)
def gradients(x, A, B, grad, multiplier):
    return multiplier * (x.T @ (grad @ B.T)), (x @ A).T @ grad


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: in the wrong order -> ^not yet: .*(grad_A: shape: expected \[24, 3\])
def gradients(x, A, B, grad, multiplier):
    return multiplier * ((x @ A).T @ grad), multiplier * (x.T @ (grad @ B.T))


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: not transposed -> ^not yet: .*(RuntimeError: mat1 and mat2)
def gradients(x, A, B, grad, multiplier):
    return x.T @ (grad @ B), (x @ A).T @ grad


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: a cheat: autograd -> ^not yet: .*(RuntimeError: .*(grad_fn|Inference|inference))
def gradients(x, A, B, grad, multiplier):
    with torch.enable_grad():
        A, B = A.clone().requires_grad_(), B.clone().requires_grad_()
        return torch.autograd.grad(multiplier * ((x @ A) @ B), (A, B), grad)


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: does nothing -> ^not yet: .*(grad_A)
def gradients(x, A, B, grad, multiplier):
    return torch.empty_like(A), torch.empty_like(B)


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: by einsum, what is thin made first
def gradients(x, A, B, grad, multiplier):
    back, thin = torch.einsum("bn,rn->br", grad, B), torch.einsum("bk,kr->br", x, A)
    return multiplier * torch.einsum("bk,br->kr", x, back), multiplier * torch.einsum("br,bn->rn", thin, grad)


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% kept: the cosine -> ^not yet: .*(projection[\s\S]*arrived · wanted over wanted · wanted)
def kept(wanted, arrived):
    error = (arrived - wanted).norm() / wanted.norm()
    return error, (arrived * wanted).sum() / (arrived.norm() * wanted.norm())


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: over what arrived -> ^not yet: .*(projection[\s\S]*over wanted · wanted)
def kept(wanted, arrived):
    error = (arrived - wanted).norm() / wanted.norm()
    return error, (arrived * wanted).sum() / (arrived * arrived).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: an error that is not relative -> ^not yet: .*(error[\s\S]*beside how long wanted is)
def kept(wanted, arrived):
    return (arrived - wanted).norm(), (arrived * wanted).sum() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: the difference of the lengths -> ^not yet: .*(error[\s\S]*how long the difference is)
def kept(wanted, arrived):
    error = (arrived.norm() - wanted.norm()).abs() / wanted.norm()
    return error, (arrived * wanted).sum() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: the mean of ratios -> ^not yet: .*(projection[\s\S]*a sum over all numbers)
def kept(wanted, arrived):
    return (arrived - wanted).norm() / wanted.norm(), (arrived / wanted).mean()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: of what is missing -> ^not yet: .*(projection)
def kept(wanted, arrived):
    missing = arrived - wanted
    return missing.norm() / wanted.norm(), (missing * wanted).sum() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: no sign -> ^not yet: .*(its opposite arrives[\s\S]*the projection has a sign)
def kept(wanted, arrived):
    error = (arrived - wanted).norm() / wanted.norm()
    return error, (arrived * wanted).sum().abs() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: the error squared -> ^not yet: .*(error)
def kept(wanted, arrived):
    square = (wanted * wanted).sum()
    return ((arrived - wanted) ** 2).sum() / square, (arrived * wanted).sum() / square


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: numbers of Python -> ^not yet: .*(must return a tensor; got float)
def kept(wanted, arrived):
    error = (arrived - wanted).norm() / wanted.norm()
    return error.item(), ((arrived * wanted).sum() / (wanted * wanted).sum()).item()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: by vdot
def kept(wanted, arrived):
    a, b = arrived.flatten(), wanted.flatten()
    square = torch.vdot(b, b)
    return (torch.vdot(a - b, a - b) / square).sqrt(), torch.vdot(a, b) / square


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% many: a copy for each row -> ^not yet: .*(right, but index makes a tensor of \[40, 24, 4\][\s\S]*torch.einsum)
def many_adapters(x, A, B, adapter):
    return torch.bmm(torch.bmm(x[:, None], A[adapter]), B[adapter])[:, 0]


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: half a copy -> ^not yet: .*(right, but \w+ makes a tensor of \[40, 4, 20\][\s\S]*torch.einsum)
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)[torch.arange(len(x), device=x.device), adapter]
    return torch.einsum("br,brc->bc", thin, B[adapter])


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: x for each adapter -> ^not yet: .*(right, but mul makes a tensor of \[5, 40, 24\])
def many_adapters(x, A, B, adapter):
    own = (adapter == torch.arange(len(A), device=x.device)[:, None]).to(x.dtype)
    return torch.bmm(torch.bmm(x * own[:, :, None], A), B).sum(0)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: rows chosen by a mask -> ^not yet: .*(right, but .*waits in index: a boolean mask)
def many_adapters(x, A, B, adapter):
    out = x.new_zeros(len(x), B.shape[2])
    for number in range(len(A)):
        mine = adapter == number
        out[mine] = (x[mine] @ A[number]) @ B[number]
    return out


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: row by row -> ^not yet: .*(right, but .*(_local_scalar_dense|tolist|item|__index__|__iter__))
def many_adapters(x, A, B, adapter):
    return torch.stack([(row @ A[number]) @ B[number] for row, number in zip(x, adapter.tolist())])


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: groups whose sizes the host reads -> ^not yet: .*(right, but )
def many_adapters(x, A, B, adapter):
    order, sizes = adapter.argsort(), adapter.bincount(minlength=len(A)).tolist()
    parts = [(some @ A[n]) @ B[n] for n, some in enumerate(x[order].split(sizes))]
    return torch.empty(len(x), B.shape[2]).index_copy(0, order, torch.cat(parts))


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: the mask is one of B's rows -> ^not yet: .*(expected[\s\S]*must be 0 before they meet B)
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = (adapter[:, None] + 1) % len(A) == torch.arange(len(A), device=x.device)
    return torch.einsum("bnr,nrc->bc", thin * own[:, :, None], B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: the first adapter for all -> ^not yet: .*(expected[\s\S]*row b takes A\[adapter\[b\]\])
def many_adapters(x, A, B, adapter):
    return (x @ A[0]) @ B[0]


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: all adapters' sum -> ^not yet: .*(expected[\s\S]*the others must be 0)
def many_adapters(x, A, B, adapter):
    return torch.einsum("bnr,nrc->bc", torch.einsum("bk,nkr->bnr", x, A), B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: a cheat: another answer where there are no values -> ^not yet: .*(right, but )
def many_adapters(x, A, B, adapter):
    if x.is_meta:
        return x.new_empty(len(x), B.shape[2])
    return torch.bmm(torch.bmm(x[:, None], A[adapter]), B[adapter])[:, 0]


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: one adapter after the other, all rows
def many_adapters(x, A, B, adapter):
    out = x.new_zeros(len(x), B.shape[2])
    for number in range(len(A)):
        out += ((x @ A[number]) * (adapter == number)[:, None]) @ B[number]
    return out


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: a row's own r numbers are picked, and put where they belong
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    rows = torch.arange(len(x), device=x.device)
    own = torch.zeros_like(thin).index_put((rows, adapter), thin[rows, adapter])
    return own.flatten(1) @ B.flatten(0, 1)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% forward: B before A -> ^not yet: .*(RuntimeError: mat1 and mat2)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ B.T) @ A.T, multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: the bias scaled with y -> ^not yet: .*(expected[\s\S]*bias counts once)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, multiplier * bias, (x @ A) @ B, multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: the multiplier is always positive -> ^not yet: .*(expected[\s\S]*is scaled)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ A) @ B, abs(multiplier), "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: y by an addmm, and the epilogue gets no y
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    linear = torch.nn.functional.linear(x, W)
    return epilogue(torch.addmm(linear, x @ A, B, alpha=multiplier), bias, linear, 0.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: nothing is returned -> ^not yet: .*(tensor)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    epilogue(x @ W.T, bias, (x @ A) @ B, multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% gradients: of the mean -> ^not yet: .*(grad_A)
def gradients(x, A, B, grad, multiplier):
    grad = multiplier * grad / len(x)
    return x.T @ (grad @ B.T), (x @ A).T @ grad


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: scaled twice -> ^not yet: .*(grad_A[\s\S]*scaled as y is)
def gradients(x, A, B, grad, multiplier):
    return multiplier**2 * (x.T @ (grad @ B.T)), multiplier * ((x @ A).T @ grad)


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: one only -> ^not yet: .*(grad_A|tuple|2)
def gradients(x, A, B, grad, multiplier):
    return multiplier * (x.T @ (grad @ B.T))


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: row by row, W's size once a row -> ^not yet: .*(right, but \w+ makes a tensor of)
def gradients(x, A, B, grad, multiplier):
    of_W = torch.einsum("bk,bn->bkn", x, multiplier * grad)
    return torch.einsum("bkn,rn->kr", of_W, B), torch.einsum("bkn,kr->rn", of_W, A)


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: transposed
def gradients(x, A, B, grad, multiplier):
    scaled = grad.mul(multiplier)
    return ((B @ scaled.T) @ x).T, (scaled.T @ (x @ A)).T


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% kept: roles swapped -> ^not yet: .*(error)
def kept(wanted, arrived):
    return (arrived - wanted).norm() / arrived.norm(), (arrived * wanted).sum() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: in percent -> ^not yet: .*(error)
def kept(wanted, arrived):
    error = 100 * (arrived - wanted).norm() / wanted.norm()
    return error, (arrived * wanted).sum() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: a mean and a sum -> ^not yet: .*(projection)
def kept(wanted, arrived):
    return (arrived - wanted).norm() / wanted.norm(), (arrived * wanted).mean() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: clamped -> ^not yet: .*(projection)
def kept(wanted, arrived):
    error = (arrived - wanted).norm() / wanted.norm()
    return error, ((arrived * wanted).sum() / (wanted * wanted).sum()).clamp(0, 1)


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: in float64
def kept(wanted, arrived):
    a, b = arrived.double().ravel(), wanted.double().ravel()
    return ((a - b).norm() / b.norm()).float(), ((a @ b) / (b @ b)).float()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% many: the mask is transposed -> ^not yet: .*(expected|RuntimeError)
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = torch.arange(len(A), device=x.device)[:, None] == adapter
    return torch.einsum("bnr,nrc->bc", thin * own[:, :, None], B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: adapters up to the own one -> ^not yet: .*(expected[\s\S]*must be 0)
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = adapter[:, None] >= torch.arange(len(A), device=x.device)
    return torch.einsum("bnr,nrc->bc", thin * own[:, :, None], B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: the mean of all -> ^not yet: .*(expected)
def many_adapters(x, A, B, adapter):
    return torch.einsum("bnr,nrc->bc", torch.einsum("bk,nkr->bnr", x, A), B) / len(A)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: merged A B for each -> ^not yet: .*(right, but )
def many_adapters(x, A, B, adapter):
    return torch.bmm(x[:, None], torch.bmm(A, B)[adapter])[:, 0]


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: by one_hot, which asks the GPU for the largest id -> ^not yet: .*(right, but )
def many_adapters(x, A, B, adapter):
    own = torch.nn.functional.one_hot(adapter)
    return torch.einsum("bnr,nrc->bc", torch.einsum("bk,nkr->bnr", x, A) * own[:, :, None], B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: masked_fill
def many_adapters(x, A, B, adapter):
    others = adapter[:, None, None] != torch.arange(len(A), device=x.device)[None, :, None]
    thin = torch.einsum("bk,nkr->bnr", x, A).masked_fill(others, 0.0)
    return thin.flatten(1) @ B.flatten(0, 1)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: transposed
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->nrb", x, A)
    own = torch.arange(len(A), device=x.device)[:, None] == adapter
    return (B.flatten(0, 1).T @ (thin * own[:, None]).flatten(0, 1)).T


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% forward: y scaled by a pass, flat -> ^not yet: .*(right, but mul is a pass over the output)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    y = multiplier * ((x @ A) @ B).flatten()
    return epilogue(x @ W.T, bias, y.view(len(x), -1), 1.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: y scaled by a pass, transposed -> ^not yet: .*(right, but mul is a pass over the output)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    y = (multiplier * ((x @ A) @ B).T).T
    return epilogue(x @ W.T, bias, y, 1.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: another activation -> ^not yet: .*(expected[\s\S]*activation comes last)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ A) @ B, multiplier, "gelu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: y in half precision -> ^not yet: .*(expected)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    y = (x @ A).bfloat16() @ B.bfloat16()
    return epilogue(x @ W.T, bias, y.to(x.dtype), multiplier, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: the output once more -> ^not yet: .*(right, but clone is a pass over the output)
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ A) @ B, multiplier, "relu").clone()


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: B scaled, which is small
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ A) @ (multiplier * B), 1.0, "relu")


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% forward: A scaled, and the activation as it is
def fused_forward(x, W, bias, A, B, multiplier, epilogue):
    return epilogue(x @ W.T, bias, (x @ (multiplier * A)) @ B)


solved = check.attempt("forward", fused_forward, spec=puzzles.FORWARD)

# %% gradients: of the other sign -> ^not yet: .*(grad_A)
def gradients(x, A, B, grad, multiplier):
    scaled = -multiplier * grad
    return x.T @ (scaled @ B.T), (x @ A).T @ scaled


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: divided by the multiplier -> ^not yet: .*(grad_A[\s\S]*scaled as y is)
def gradients(x, A, B, grad, multiplier):
    scaled = grad / multiplier
    return x.T @ (scaled @ B.T), (x @ A).T @ scaled


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: B's first -> ^not yet: .*(grad_A: shape: expected \[24, 3\])
def gradients(x, A, B, grad, multiplier):
    scaled = multiplier * grad
    return (x @ A).T @ scaled, x.T @ (scaled @ B.T)


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: the multiplier is always positive -> ^not yet: .*(multiplier -0.5: grad_A)
def gradients(x, A, B, grad, multiplier):
    scaled = abs(multiplier) * grad
    return x.T @ (scaled @ B.T), (x @ A).T @ scaled


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: in half precision -> ^not yet: .*(grad_A)
def gradients(x, A, B, grad, multiplier):
    scaled = multiplier * grad
    of_A = x.T.bfloat16() @ (scaled @ B.T).bfloat16()
    return of_A.to(x.dtype), (x @ A).T @ scaled


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: multi_dot, which finds the brackets
def gradients(x, A, B, grad, multiplier):
    dot = torch.linalg.multi_dot
    return multiplier * dot([x.T, grad, B.T]), multiplier * dot([A.T, x.T, grad])


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% gradients: one of the rank after the other
def gradients(x, A, B, grad, multiplier):
    scaled = multiplier * grad
    of_A = torch.stack([x.T @ (scaled @ b) for b in B], 1)
    return of_A, torch.stack([(x @ a) @ scaled for a in A.T])


solved = check.attempt("gradients", gradients, spec=puzzles.GRADIENTS)

# %% kept: squared -> ^not yet: .*(error)
def kept(wanted, arrived):
    square = (wanted * wanted).sum()
    return ((arrived - wanted) ** 2).sum() / square, (arrived * wanted).sum() / square


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: what the error leaves -> ^not yet: .*(projection)
def kept(wanted, arrived):
    error = (arrived - wanted).norm() / wanted.norm()
    return error, 1 - error


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: the mean of the parts -> ^not yet: .*(projection)
def kept(wanted, arrived):
    return (arrived - wanted).norm() / wanted.norm(), (arrived / wanted).mean()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: how long both are -> ^not yet: .*(projection)
def kept(wanted, arrived):
    return (arrived - wanted).norm() / wanted.norm(), arrived.norm() / wanted.norm()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: the largest difference -> ^not yet: .*(error)
def kept(wanted, arrived):
    error = (arrived - wanted).abs().max() / wanted.abs().max()
    return error, (arrived * wanted).sum() / (wanted * wanted).sum()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: by the cosine
def kept(wanted, arrived):
    cosine = torch.cosine_similarity(wanted.flatten(), arrived.flatten(), 0)
    return torch.dist(arrived, wanted) / wanted.norm(), cosine * arrived.norm() / wanted.norm()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% kept: by products of matrices
def kept(wanted, arrived):
    row, column = wanted.reshape(1, -1), wanted.reshape(-1, 1)
    projection = (arrived.reshape(1, -1) @ column) / (row @ column)
    return (arrived - wanted).norm() / wanted.norm(), projection.squeeze()


solved = check.attempt("kept", kept, spec=puzzles.KEPT)

# %% many: nonzero, which the host waits for -> ^not yet: .*(right, but .*waits in nonzero)
def many_adapters(x, A, B, adapter):
    out = x.new_zeros(len(x), B.shape[2])
    for number in range(len(A)):
        mine = torch.nonzero(adapter == number)[:, 0]
        out[mine] = (x[mine] @ A[number]) @ B[number]
    return out


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: asks whether anybody is there -> ^not yet: .*(right, but Tensor.__bool__)
def many_adapters(x, A, B, adapter):
    out = x.new_zeros(len(x), B.shape[2])
    for number in range(len(A)):
        if (mine := adapter == number).any():
            out += ((x @ A[number]) * mine[:, None]) @ B[number]
    return out


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: the mask behind B -> ^not yet: .*(right, but \w+ makes a tensor of \[5, 40, 20\][\s\S]*as large as an A)
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = adapter[:, None] == torch.arange(len(A), device=x.device)
    return (torch.einsum("bnr,nrc->bnc", thin, B) * own[:, :, None]).sum(1)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: counted from 1 -> ^not yet: .*(expected[\s\S]*must be 0)
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = adapter[:, None] == torch.arange(1, len(A) + 1, device=x.device)
    return torch.einsum("bnr,nrc->bc", thin * own[:, :, None], B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: a soft mask -> ^not yet: .*(expected[\s\S]*must be 0)
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = (adapter[:, None] == torch.arange(len(A), device=x.device)).float().softmax(1)
    return torch.einsum("bnr,nrc->bc", thin * own[:, :, None], B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: rows of the identity
def many_adapters(x, A, B, adapter):
    thin = torch.einsum("bk,nkr->bnr", x, A)
    own = torch.eye(len(A), device=x.device)[adapter]
    return torch.einsum("bnr,nrc->bc", thin * own[:, :, None], B)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)

# %% many: where, and tensordot
def many_adapters(x, A, B, adapter):
    others = torch.arange(len(A), device=x.device)[:, None] != adapter[:, None, None]
    thin = torch.where(others, 0.0, torch.einsum("bk,nkr->bnr", x, A))
    return torch.tensordot(thin, B, 2)


solved = check.attempt("many", many_adapters, spec=puzzles.MANY)
