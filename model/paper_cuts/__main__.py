"""python -m model.paper_cuts: record what each paper cut costs."""

if __name__ == "__main__":
    from data.cli import run

    run("model.paper_cuts.record")
