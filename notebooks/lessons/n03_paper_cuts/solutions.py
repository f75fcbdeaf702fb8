"""Answers to the puzzles of 03_paper_cuts.ipynb, a section a puzzle."""

# %% sorted
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position + 1, 0)


solved = puzzles.attempt("sorted", rows_of)

# %% metric
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


solved = puzzles.attempt("metric", add_up)

# %% sparse_look_up
def look_up(table, rows):
    return F.embedding(rows, table, sparse=True)


solved = puzzles.attempt("sparse_look_up", look_up)

# %% update
def update(table, rows, grad, rate):
    table.index_add_(0, rows, grad, alpha=-rate)


solved = puzzles.attempt("update", update)
