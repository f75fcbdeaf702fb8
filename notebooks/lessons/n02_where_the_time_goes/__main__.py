"""python -m lessons.n02_where_the_time_goes: a clock, the time of a launch, and TF32, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n02_where_the_time_goes.experiment")
