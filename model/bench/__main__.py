"""python -m model.bench: what training and prediction cost on a GPU, eager beside fused."""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.training")
