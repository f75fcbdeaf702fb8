"""Answers to the puzzles of 03_paper_cuts.ipynb, a section a puzzle."""

# %% sorted
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position + 1, 0)


solved = check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% metric
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


solved = check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% look_up
def look_up(table, rows):
    return F.embedding(rows, table, sparse=True)


solved = check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% update
def update(table, rows, grad, rate):
    table.index_add_(0, rows, grad, alpha=-rate)


solved = check.attempt("update", update, spec=puzzles.UPDATE)
