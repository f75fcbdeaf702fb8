"""python -m lessons.n05_cuda_graphs_and_memory: what CUDA graphs cost and bring, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n05_cuda_graphs_and_memory.experiment")
