"""Wrong answers to the puzzles of 04_torch_compile.ipynb, and unusual right ones; see tests/test_puzzles.py."""

# %% normalise: as it stands -> ^not yet: right, but .*stops at[\s\S]*Hint
def my_normalised(x):
    longest = x.norm(dim=1).max()
    if longest > 1:
        x = x / longest
    return x


puzzles.attempt("normalise", my_normalised)

# %% normalise: where, and 0 times inf -> ^not yet: zeros: the gradient.*nan[\s\S]*0 · inf
def my_normalised(x):
    longest = x.norm(dim=1).max()
    return torch.where(longest > 1, x / longest, x)


puzzles.attempt("normalise", my_normalised)

# %% normalise: a read without an if -> ^not yet: long rows: the gradient
def my_normalised(x):
    return x / max(1.0, x.norm(dim=1).max().item())


puzzles.attempt("normalise", my_normalised)

# %% normalise: always divided -> ^not yet: short rows: at[\s\S]*else 1
def my_normalised(x):
    return x / x.norm(dim=1).max()


puzzles.attempt("normalise", my_normalised)

# %% normalise: each row by its own length -> ^not yet: long rows: at
def my_normalised(x):
    return x / x.norm(dim=1, keepdim=True).clamp(min=1)


puzzles.attempt("normalise", my_normalised)

# %% normalise: the divisor is detached -> ^not yet: long rows: the gradient[\s\S]*divisor has a gradient
def my_normalised(x):
    return x / x.norm(dim=1).max().detach().clamp(min=1)


puzzles.attempt("normalise", my_normalised)

# %% normalise: a cheat: all is detached -> ^not yet: long rows: no gradient reaches x
def my_normalised(x):
    x = x.detach()
    return x / x.norm(dim=1).max().clamp(min=1)


puzzles.attempt("normalise", my_normalised)

# %% normalise: a cheat: hidden from the compiler -> ^not yet: right, but .*stops at
@torch.compiler.disable
def hidden(x):
    longest = x.norm(dim=1).max()
    return x / longest if longest > 1 else x


def my_normalised(x):
    return hidden(x)


puzzles.attempt("normalise", my_normalised)

# %% normalise: where for the divisor
def my_normalised(x):
    longest = x.norm(dim=1).max()
    return x / torch.where(longest > 1, longest, 1.0)


puzzles.attempt("normalise", my_normalised)

# %% serve: as it stands -> ^not yet: batch 2, of 40 rows: right, but compiled again[\s\S]*Give it that many
def serve(compiled, dense, ids, full):
    return compiled(dense, ids)


puzzles.attempt("serve", serve)

# %% serve: not cut -> ^not yet: batch 2.*expected shape \[40\], got \[64\]
def serve(compiled, dense, ids, full):
    k = full - len(dense)
    return compiled(F.pad(dense, (0, 0, 0, k)), F.pad(ids, (0, 0, 0, k)))


puzzles.attempt("serve", serve)

# %% serve: filled up in front -> ^not yet: batch 2.*at \(0,\) expected[\s\S]*in their order
def serve(compiled, dense, ids, full):
    k = full - len(dense)
    return compiled(F.pad(dense, (0, 0, k, 0)), F.pad(ids, (0, 0, k, 0)))[: len(dense)]


puzzles.attempt("serve", serve)

# %% serve: columns are filled up -> ^not yet: batch 2, of 40 rows:
def serve(compiled, dense, ids, full):
    k = full - len(dense)
    return compiled(F.pad(dense, (0, k)), F.pad(ids, (0, k)))[: len(dense)]


puzzles.attempt("serve", serve)

# %% serve: a cheat: the odd batch in eager -> ^not yet: batch 2.*no attribute '_orig_mod'
def serve(compiled, dense, ids, full):
    if len(dense) < full:
        return compiled._orig_mod(dense, ids)
    return compiled(dense, ids)


puzzles.attempt("serve", serve)

# %% serve: the odd batch is dropped -> ^not yet: batch 2.*must return a tensor; got NoneType
def serve(compiled, dense, ids, full):
    if len(dense) == full:
        return compiled(dense, ids)


puzzles.attempt("serve", serve)

# %% serve: row by row -> ^not yet: batch 0.*was called 64 times|^not yet: batch 0.*compiled again
def serve(compiled, dense, ids, full):
    return torch.cat([compiled(dense[i : i + 1], ids[i : i + 1]) for i in range(len(dense))])


puzzles.attempt("serve", serve)

# %% serve: marked as dynamic from the start
def serve(compiled, dense, ids, full):
    for tensor in (dense, ids):
        torch._dynamo.mark_dynamic(tensor, 0)
    return compiled(dense, ids)


puzzles.attempt("serve", serve)

# %% look_ups: as it stands -> ^not yet: right, but the compiler writes \d+ kernels[\s\S]*one tensor, once
def lay_out(tables):
    return tables


def look_up(laid, ids):
    return torch.stack([table[ids[:, f]] for f, table in enumerate(laid)], dim=1)


puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: put together in each call -> ^not yet: (right, but|compiled: )
def lay_out(tables):
    return tables


def look_up(laid, ids):
    starts = torch.tensor([0, *map(len, laid[:-1])]).cumsum(0)
    return torch.cat(laid)[starts + ids]


puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: without the starts -> ^not yet: 40 rows.*at \(\d+, [1-9]\d*, \d+\) expected[\s\S]*behind all tables
def lay_out(tables):
    return torch.cat(tables), torch.tensor([0, *map(len, tables[:-1])]).cumsum(0)


def look_up(laid, ids):
    table, _ = laid
    return table[ids]


puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: the starts down the rows -> ^not yet: 40 rows, 26 tables: \w*Error
def lay_out(tables):
    return torch.cat(tables), torch.tensor([0, *map(len, tables[:-1])]).cumsum(0)


def look_up(laid, ids):
    table, starts = laid
    return table[starts[:, None] + ids]


puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: the starts of the tables behind -> ^not yet: 40 rows, 26 tables:
def lay_out(tables):
    return torch.cat(tables), torch.tensor([*map(len, tables)]).cumsum(0)


def look_up(laid, ids):
    table, starts = laid
    return table[(starts + ids) % len(table)]


puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: a product with ones and zeros -> ^not yet: right, but the compiler writes .*extern GEMM
def lay_out(tables):
    return torch.cat(tables), torch.tensor([0, *map(len, tables[:-1])]).cumsum(0)


def look_up(laid, ids):
    table, starts = laid
    return F.one_hot(starts + ids, len(table)).to(table.dtype) @ table


puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: a cheat: detach -> ^not yet: no gradient reaches the tables
def lay_out(tables):
    return torch.cat(tables).detach(), torch.tensor([0, *map(len, tables[:-1])]).cumsum(0)


def look_up(laid, ids):
    table, starts = laid
    return table[starts + ids]


puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: flat, and folded again
def lay_out(tables):
    return torch.cat(tables), torch.tensor([0, *map(len, tables[:-1])]).cumsum(0)


def look_up(laid, ids):
    table, starts = laid
    rows = (starts + ids).flatten()
    return F.embedding(rows, table).view(*ids.shape, -1)


puzzles.attempt("look_ups", lay_out, look_up)

# %% normalise: nothing is returned -> ^not yet: long rows: must return a tensor; got NoneType
def my_normalised(x):
    x = x / x.norm(dim=1).max().clamp(min=1)


solved = puzzles.attempt("normalise", my_normalised)

# %% normalise: the root of 0 -> ^not yet: zeros: the gradient[\s\S]*sqrt at 0
def my_normalised(x):
    return x / (x * x).sum(dim=1).max().sqrt().clamp(min=1)


solved = puzzles.attempt("normalise", my_normalised)

# %% look_ups: a parameter of its own
def lay_out(tables):
    starts = torch.tensor([0, *map(len, tables)][:-1]).cumsum(0)
    return torch.nn.Parameter(torch.cat(tables)), starts


def look_up(laid, ids):
    table, starts = laid
    return table[ids + starts]


solved = puzzles.attempt("look_ups", lay_out, look_up)

# %% look_ups: the starts are made in each call -> ^not yet: (right, but|compiled:)[\s\S]*Hint: (make every|let lay_out)
def lay_out(tables):
    return torch.cat(tables), [0, *torch.tensor([*map(len, tables)]).cumsum(0).tolist()][:-1]


def look_up(laid, ids):
    table, starts = laid
    return table[ids + torch.tensor(starts)]


solved = puzzles.attempt("look_ups", lay_out, look_up)
