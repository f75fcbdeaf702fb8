"""python -m model.bench: what training and prediction cost on a GPU, eager beside fused; scale: training on several."""

if __name__ == "__main__":
    import sys

    from data.cli import run

    run("model.bench.scale.command" if sys.argv[1:2] == ["scale"] else "model.bench.training")
