"""Answers to the puzzles of 03_paper_cuts.ipynb, a section a puzzle."""

# %% metric
def add_up(total, logits, labels):  # total [3], logits [B], labels [B], 0 or 1; returns nothing
    logits = logits.detach()
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


solved = puzzles.attempt("metric", add_up)
add_up = puzzles.passed("metric")  # yours; the lecture's until yours passes

# %% sparse_look_up
def look_up(table, rows):  # table [R, D], which requires a gradient; rows [B] -> [B, D]
    return F.embedding(rows, table, sparse=True)


solved = puzzles.attempt("sparse_look_up", look_up)
look_up = puzzles.passed("sparse_look_up")  # yours; the lecture's until yours passes

# %% update
def update(table, rows, grad, rate):  # table [R, D], rows [B], grad [B, D], rate: a number; returns nothing
    table.index_add_(0, rows, grad, alpha=-rate)


solved = puzzles.attempt("update", update)
update = puzzles.passed("update")  # yours; the lecture's until yours passes
