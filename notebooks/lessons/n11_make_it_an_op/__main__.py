"""python -m lessons.n11_make_it_an_op: what a call of an op costs, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n11_make_it_an_op.experiment")
