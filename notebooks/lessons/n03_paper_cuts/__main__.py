"""python -m lessons.n03_paper_cuts: record what each paper cut costs."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n03_paper_cuts.experiment")
