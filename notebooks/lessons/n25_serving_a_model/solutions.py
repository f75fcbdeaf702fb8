"""The answer to the puzzle of 25_serving_a_model.ipynb."""

# %% body
def body(counts, ids):  # float32 [B, 13], int64 [B, 26] -> bytes
    return len(counts).to_bytes(8, "little") + counts.numpy().tobytes() + ids.numpy().tobytes()


solved = puzzles.attempt("body", body)
body = puzzles.passed("body")  # yours, or until it passes the lecture's
