"""python -m lessons.n07_read_the_generated_triton: what torch.compile generates for one function, measured."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n07_read_the_generated_triton.experiment")
