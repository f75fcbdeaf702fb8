"""Answers to the puzzles of 01_dlrm_from_scratch.ipynb, a section a puzzle."""

# %% look_up
def look_up(tables, sizes, ids):  # F tables of n + 1 rows, the F numbers n, ids [B, F] -> [B, F, D]
    vectors = []
    for f, (table, n) in enumerate(zip(tables, sizes, strict=True)):
        rows = (ids[:, f] + 1) % n
        vectors.append(table(rows))
    return torch.stack(vectors, dim=1)


solved = puzzles.attempt("look_up", look_up)
look_up = puzzles.passed("look_up")  # yours; the lecture's until yours passes

# %% interact
def interact(x, vectors, pairs):  # v0 [B, D], v1 to vF [B, F, D], the pairs' numbers i and j [2, P] -> [B, D + P]
    both = torch.cat([x.unsqueeze(1), vectors], dim=1)  # [B, F + 1, D]
    products = both @ both.mT  # [B, F + 1, F + 1]
    i, j = pairs
    return torch.cat([x, products[:, i, j]], dim=1)


solved = puzzles.attempt("interact", interact)
interact = puzzles.passed("interact")  # yours; the lecture's until yours passes

# %% step
def step(model, optimizer, labels, dense, ids):  # -> the loss, without its graph
    loss = F.binary_cross_entropy_with_logits(model(dense, ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


solved = puzzles.attempt("step", step)
step = puzzles.passed("step")  # yours; the lecture's until yours passes
