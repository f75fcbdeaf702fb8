"""python -m lessons.n04_torch_compile: record what is fused, and the seconds and milliseconds of compiling."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n04_torch_compile.experiment")
