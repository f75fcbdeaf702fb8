"""python -m model.graphs: record modes, late reads, memory and replays."""

if __name__ == "__main__":
    from data.cli import run

    run("model.graphs.record")
