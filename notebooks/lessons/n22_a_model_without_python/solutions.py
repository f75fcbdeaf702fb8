"""Answers to the puzzles of 22_a_model_without_python.ipynb, a section a puzzle."""

# %% as_trained
def as_trained(counts):  # float32 [B, 13], NaN where one is missing -> as training saw them
    return torch.where(counts > 0, counts, 0.0).log1p()  # NaN is not greater


solved = puzzles.attempt("as_trained", as_trained)
as_trained = puzzles.passed("as_trained")  # yours, or until it passes the lecture's

# %% is_declared
def is_declared(declared, shapes):  # {name: sizes}, {name: shape} -> whether the shapes are what was declared
    known = {}  # letter -> number
    if declared.keys() != shapes.keys():
        return False
    for name, sizes in declared.items():
        if len(sizes) != len(shapes[name]):
            return False
        for size, number in zip(sizes, shapes[name], strict=True):
            if isinstance(size, str):
                size = known.setdefault(size, number)
            if size != number:
                return False
    return True


solved = puzzles.attempt("is_declared", is_declared)
