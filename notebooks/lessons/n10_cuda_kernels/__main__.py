"""python -m lessons.n10_cuda_kernels: the lesson's CUDA kernels, compiled (by nvcc alone) and timed (on a GPU)."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n10_cuda_kernels.experiment")
