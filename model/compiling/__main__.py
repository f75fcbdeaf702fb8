"""python -m model.compiling: record what is fused, and the seconds and milliseconds of compiling."""

if __name__ == "__main__":
    from data.cli import run

    run("model.compiling.record")
