"""Answers to the puzzles of 04_torch_compile.ipynb, a section a puzzle."""

# %% normalise
def my_normalised(x):
    longest = x.norm(dim=1).max()
    return x / longest.clamp(min=1)


solved = puzzles.attempt("normalise", my_normalised)

# %% serve
def serve(compiled, dense, ids, full):  # dense [B, 13], ids [B, F], 1 <= B <= full -> logits [B]
    missing = full - len(dense)
    logits = compiled(F.pad(dense, (0, 0, 0, missing)), F.pad(ids, (0, 0, 0, missing)))
    return logits[: len(dense)]


solved = puzzles.attempt("serve", serve)

# %% look_ups
def lay_out(tables):  # 26 tables [R_f, 16] -> what look_up gets
    heights = torch.tensor([0, *map(len, tables[:-1])])
    return torch.cat(tables), heights.cumsum(0)


def look_up(laid, ids):  # ids [B, 26] -> [B, 26, 16]
    table, starts = laid
    return table[starts + ids]


solved = puzzles.attempt("look_ups", lay_out, look_up)
if solved:
    print("yours:", cost(*puzzles.written_for(lay_out, look_up)))
