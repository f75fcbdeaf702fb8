"""python -m lessons.n09_a_backward: a pointwise kernel's backward, step by step, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n09_a_backward.experiment")
