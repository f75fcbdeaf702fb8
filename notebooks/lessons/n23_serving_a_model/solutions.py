"""The answers to the puzzles of 23_serving_a_model.ipynb."""

# %% body
def body(counts, ids):  # float32 [B, 13], int64 [B, 26] -> bytes
    return len(counts).to_bytes(8, "little") + counts.numpy().tobytes() + ids.numpy().tobytes()


solved = puzzles.attempt("body", body)
body = puzzles.passed("body")  # yours, or until it passes the lecture's


# %% look_up
def look_up(state, ids):  # state.table: {id: row}; ids: a list -> the list of their rows, 0 for an unknown id
    table = state.table
    return [table.get(one, 0) for one in ids]


solved = puzzles.attempt("look_up", look_up)
