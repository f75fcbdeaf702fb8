"""Wrong answers to the puzzles of 03_paper_cuts.ipynb, and unusual right ones; format: tests/test_puzzles.py."""

# %% sorted: no + 1 -> ^not yet: .*(expected[\s\S]*row 0 is nobody's)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: unknown ids have a row -> ^not yet: .*(not all of[\s\S]*expected[\s\S]*is the id that lies there)
def rows_of(ids, known):
    return torch.searchsorted(known, ids) + 1


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a position above all -> ^not yet: .*(some above all of[\s\S]*IndexError[\s\S]*does not exist)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    return torch.where(known[position] == ids, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: the position behind equal ids -> ^not yet: .*(expected[\s\S]*row 0 is nobody's|IndexError)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids, right=True)
    found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: each with each -> ^not yet: .*(right, but eq makes a tensor of \[6, 4\], in `return[\s\S]*searchsorted)
def rows_of(ids, known):
    return ((ids[:, None] == known) * torch.arange(1, len(known) + 1, device=ids.device)).sum(1)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a cheat: a dictionary of lists -> ^not yet: .*(right, but Tensor.tolist reads values on the host)
def rows_of(ids, known):
    places = {id: row for row, id in enumerate(known.tolist(), 1)}
    return torch.tensor([places.get(id, 0) for id in ids.tolist()], device=ids.device)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a cheat: NumPy -> ^not yet: .*(right, but Tensor.numpy reads values on the host)
def rows_of(ids, known):
    import numpy
    found, place = numpy.isin(ids.numpy(), known.numpy()), numpy.searchsorted(known.numpy(), ids.numpy())
    return torch.from_numpy(numpy.where(found, place + 1, 0))


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a boolean mask -> ^not yet: .*(right, but .*waits in index: a boolean mask[\s\S]*in `rows\[)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    found = known[position.clamp(max=len(known) - 1)] == ids
    rows = torch.zeros_like(ids)
    rows[found] = position[found] + 1
    return rows


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a wait in disguise: nonzero -> ^not yet: .*(right, but .*waits in nonzero: how large)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    (where,) = (known[position.clamp(max=len(known) - 1)] == ids).nonzero(as_tuple=True)
    rows = torch.zeros_like(ids)
    rows[where] = position[where] + 1
    return rows


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a round trip to the host -> ^not yet: .*(right, but .*waits in _to_copy: the copy to the host)
def rows_of(ids, known):
    position = torch.searchsorted(known.cpu(), ids.cpu())
    found = known.cpu()[position.clamp(max=len(known) - 1)] == ids.cpu()
    return torch.where(found, position + 1, 0).to(ids.device)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a wait in disguise: an if -> ^not yet: .*(right, but .*(__bool__|_local_scalar_dense))
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    if (position == len(known)).any():
        position = position.clamp(max=len(known) - 1)
    return torch.where(known[position] == ids, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a constant from the host -> ^not yet: .*(right, but tensor copies from the host to the GPU)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    position = torch.minimum(position, torch.tensor(len(known) - 1, device=ids.device))
    return torch.where(known[position] == ids, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: ids rounded to float32 -> ^not yet: .*(expected[\s\S]*leave them in int64)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids.float())
    found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: both rounded to float32 -> ^not yet: .*(expected[\s\S]*leave them in int64)
def rows_of(ids, known):
    position = torch.searchsorted(known.float(), ids.float())
    found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: ids cut to 32 bits with a sign -> ^not yet: .*(expected[\s\S]*leave them in int64)
def rows_of(ids, known):
    position = torch.searchsorted(known.int(), ids.int())
    found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a table of all ids -> ^not yet: .*(IndexError)
def rows_of(ids, known):
    rows = torch.zeros(5000, dtype=torch.int64, device=ids.device)
    rows[known] = torch.arange(1, len(known) + 1, device=ids.device)
    return rows[ids]


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: one known id after the other -> ^not yet: .*(more than 160 operators[\s\S]*each with each)
def rows_of(ids, known):
    row = torch.zeros_like(ids)
    for k in range(len(known)):
        row = row + (ids == known[k]) * (k + 1)
    return row


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: an exception that no GPU raises -> ^not yet: .*(no exception comes from there)
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    try:
        found = known[position] == ids
    except IndexError:
        found = known[position.clamp(max=len(known) - 1)] == ids
    return torch.where(found, position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: a cheat: another answer where there are no values -> ^not yet: .*(on a GPU it would not do the same)
def rows_of(ids, known):
    if ids.device.type == "meta":
        return ids
    places = {id: row for row, id in enumerate(known.tolist(), 1)}
    return torch.tensor([places.get(id, 0) for id in ids.tolist()])


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: isin -> ^not yet: .*right, but isin compares each with each.*torch\.isin.*\nHint: .*searchsorted
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    return torch.where(torch.isin(ids, known), position + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: rows made on the CPU -> ^not yet: .*right, but on a GPU index has .* made on the CPU: .*in `return
def rows_of(ids, known):
    position = torch.searchsorted(known, ids)
    rows = torch.arange(1, len(known) + 1)
    position = position.clamp(max=len(known) - 1)
    return torch.where(known[position] == ids, rows[position], 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: bisection by hand
def rows_of(ids, known):
    low, high = torch.zeros_like(ids), torch.full_like(ids, len(known))
    for _ in range(len(known).bit_length()):
        middle = (low + high) // 2
        smaller, open = known[middle.clamp(max=len(known) - 1)] < ids, low < high
        low, high = torch.where(open & smaller, middle + 1, low), torch.where(open & ~smaller, middle, high)
    return torch.where(known[low.clamp(max=len(known) - 1)] == ids, low + 1, 0)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: two searches
def rows_of(ids, known):
    low, high = torch.searchsorted(known, ids), torch.searchsorted(known, ids, right=True)
    return high * (high - low)


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% sorted: the position behind, less one; the mask is filled with one number
def rows_of(ids, known):
    position = torch.searchsorted(known, ids, right=True)
    rows = position.clone()
    rows[known[(position - 1).clamp(min=0)] != ids] = 0
    return rows


check.attempt("sorted", rows_of, spec=puzzles.SORTED)

# %% metric: the loss by .item() -> ^not yet: .*(right, but Tensor.item reads values on the host[\s\S]*in `total\[0\])
def add_up(total, logits, labels):
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum").item()
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: the loss by float() -> ^not yet: .*(right, but Tensor.__float__ reads values on the host)
def add_up(total, logits, labels):
    total[0] += float(F.binary_cross_entropy_with_logits(logits, labels, reduction="sum"))
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: the graph is kept -> ^not yet: .*(total requires a gradient now)
def add_up(total, logits, labels):
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: right predictions by a mask -> ^not yet: .*(right, but .*waits in index: a boolean mask)
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] += len(labels[(logits > 0) == (labels == 1)])
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: right predictions by nonzero -> ^not yet: .*(right, but .*waits in nonzero)
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] += len(((logits > 0) == (labels == 1)).nonzero())
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: a new tensor, which nobody sees -> ^not yet: .*(expected[\s\S]*all in place)
def add_up(total, logits, labels):
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    right = ((logits > 0) == (labels == 1)).sum()
    total = total + torch.stack([loss, right, torch.tensor(len(labels))]).detach()


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: the mean -> ^not yet: .*(expected[\s\S]*sum of the rows' losses)
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] += F.binary_cross_entropy_with_logits(logits, labels)
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: what was there is overwritten -> ^not yet: .*(expected[\s\S]*total\[0\] grows)
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] = ((logits > 0) == (labels == 1)).sum()
    total[2] = len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: a list of three numbers, sent to the device -> ^not yet: .*(right, but tensor reads each number of a list)
def add_up(total, logits, labels):
    logits = logits.detach()
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    right = ((logits > 0) == (labels == 1)).sum()
    total += torch.tensor([loss, right, len(labels)], device=total.device)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: 0 counts as above -> ^not yet: .*(a logit of 0[\s\S]*expected[\s\S]*0 is not above 0)
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    total[1] += ((logits >= 0) == (labels == 1)).sum()
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: the loss of a probability -> ^not yet: .*(a logit of 200[\s\S]*expected[\s\S]*needs no sigmoid)
def add_up(total, logits, labels):
    logits = logits.detach()
    total[0] += F.binary_cross_entropy(logits.sigmoid(), labels, reduction="sum")
    total[1] += ((logits > 0) == (labels == 1)).sum()
    total[2] += len(labels)


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% metric: no_grad, a probability's half, one addition
def add_up(total, logits, labels):
    with torch.no_grad():
        right = ((logits.sigmoid() > 0.5) == labels.bool()).sum()
        count = torch.full_like(right, len(labels))
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        total.add_(torch.stack([loss, right, count]))


check.attempt("metric", add_up, spec=puzzles.METRIC)

# %% look_up: an index -> ^not yet: .*(right, but new_zeros makes a tensor of \[90, 4\][\s\S]*sparse one)
def look_up(table, rows):
    return table[rows]


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: as it stands -> ^not yet: .*(embedding_dense_backward makes a tensor of \[90, 4\][\s\S]*sparse one)
def look_up(table, rows):
    return F.embedding(rows, table)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: a cheat: detach -> ^not yet: .*(no gradient reaches the table: detach)
def look_up(table, rows):
    return table.detach()[rows]


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: a cheat: detach, and a leaf of its own -> ^not yet: .*(no gradient reaches the table: detach)
def look_up(table, rows):
    return table.detach()[rows].requires_grad_()


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: a cheat: a table made anew -> ^not yet: .*(no gradient reaches the table)
def look_up(table, rows):
    return F.embedding(rows, torch.nn.Parameter(table.data), sparse=True)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: no_grad -> ^not yet: .*(no gradient reaches the table)
def look_up(table, rows):
    with torch.no_grad():
        return F.embedding(rows, table, sparse=True)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: a matrix product with ones and zeros -> ^not yet: .*(makes a tensor of \[(9, )?90\])
def look_up(table, rows):
    return F.one_hot(rows, len(table)).to(table.dtype) @ table


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: row by row, by way of the host -> ^not yet: .*(right, but Tensor.tolist reads)
def look_up(table, rows):
    return torch.stack([table[row] for row in rows.tolist()])


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: the rows are off by one -> ^not yet: .*(expected)
def look_up(table, rows):
    return F.embedding((rows + 1) % len(table), table, sparse=True)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: row 0 is nobody's -> ^not yet: .*row 0 among them: .*expected[\s\S]*like any other
def look_up(table, rows):
    return F.embedding(rows.clamp(min=1), table, sparse=True)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: bags that begin on the CPU -> ^not yet: .*right, but on a GPU \w+ has .* made on the CPU
def look_up(table, rows):
    return F.embedding_bag(rows, table, torch.arange(len(rows)), mode="sum", sparse=True)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: bags of one row
def look_up(table, rows):
    return F.embedding_bag(rows[:, None], table, mode="sum", sparse=True)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% look_up: gather, which has a sparse gradient too
def look_up(table, rows):
    return table.gather(0, rows[:, None].expand(-1, table.shape[1]), sparse_grad=True)


check.attempt("look_up", look_up, spec=puzzles.LOOK_UP)

# %% update: as it stands: one duplicate counts -> ^not yet: .*(expected[\s\S]*each of its three gradients)
def update(table, rows, grad, rate):
    table[rows] -= rate * grad


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: no rate -> ^not yet: .*(expected[\s\S]*times the rate)
def update(table, rows, grad, rate):
    table.index_add_(0, rows, grad, alpha=-1)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: the wrong sign -> ^not yet: .*(expected)
def update(table, rows, grad, rate):
    table.index_add_(0, rows, grad, alpha=rate)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: a dense gradient -> ^not yet: .*(right, but zeros_like makes a tensor of \[90, 4\][\s\S]*adds to some rows)
def update(table, rows, grad, rate):
    dense = torch.zeros_like(table).index_add_(0, rows, grad)
    table.sub_(dense, alpha=rate)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: not in place -> ^not yet: .*(expected|must return|needs)
def update(table, rows, grad, rate):
    table = table.index_add(0, rows, grad, alpha=-rate)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: a wait in disguise: unique -> ^not yet: .*(right, but .*waits in _unique2: how large)
def update(table, rows, grad, rate):
    distinct, which = rows.unique(return_inverse=True)
    sums = grad.new_zeros(len(distinct), grad.shape[1]).index_add_(0, which, grad)
    table[distinct] -= rate * sums


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: a wait in disguise: coalesce -> ^not yet: .*(right, but .*waits in _coalesce: how large)
def update(table, rows, grad, rate):
    sums = torch.sparse_coo_tensor(rows[None], grad, table.shape).coalesce()
    table[sums.indices()[0]] -= rate * sums.values()


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: a wait in disguise: a loop over rows -> ^not yet: .*(right, but Tensor.tolist reads values)
def update(table, rows, grad, rate):
    for row, one in zip(rows.tolist(), grad):
        table[row] -= rate * one


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: row 0 is nobody's -> ^not yet: .*row 0 among them: .*expected[\s\S]*like any other
def update(table, rows, grad, rate):
    table.index_add_(0, rows, grad * (rows > 0)[:, None], alpha=-rate)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: an order made on the CPU -> ^not yet: .*right, but on a GPU index has .* made on the CPU
def update(table, rows, grad, rate):
    order = torch.arange(len(rows))
    table.index_add_(0, rows[order], grad[order], alpha=-rate)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: a matrix made on the CPU -> ^not yet: .*right, but on a GPU add_ has .* made on the CPU
def update(table, rows, grad, rate):
    same = torch.zeros(len(rows), len(rows))
    same += rows[:, None] == rows
    table[rows] -= rate * (same @ grad)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: index_put_ that accumulates
def update(table, rows, grad, rate):
    table.index_put_((rows,), -rate * grad, accumulate=True)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: the table is returned, too
def update(table, rows, grad, rate):
    return table.index_add_(0, rows, grad, alpha=-rate)


check.attempt("update", update, spec=puzzles.UPDATE)

# %% update: each row of the batch with each
def update(table, rows, grad, rate):
    same = (rows[:, None] == rows).to(grad.dtype)
    table[rows] -= rate * (same @ grad)


check.attempt("update", update, spec=puzzles.UPDATE)
