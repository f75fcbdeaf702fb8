"""python -m lessons.n02_where_the_time_goes: what TF32 brings, and what it costs in accuracy, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n02_where_the_time_goes.experiment")
