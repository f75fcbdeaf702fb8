"""python -m lessons.n08_triton_kernels: a pointwise Triton kernel, step by step, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n08_triton_kernels.experiment")
