"""python -m lessons.n12_lora: layers, steps and adapters with LoRA, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n12_lora.experiment")
