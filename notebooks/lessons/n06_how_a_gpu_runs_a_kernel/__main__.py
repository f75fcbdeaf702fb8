"""python -m lessons.n06_how_a_gpu_runs_a_kernel: what a GPU does with small kernels, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n06_how_a_gpu_runs_a_kernel.experiment")
