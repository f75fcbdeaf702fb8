"""What training and prediction cost on a GPU, eager beside fused: `python -m model.bench`.

    training.py     steps and epochs; the command
    whole_model.py  the parts in which everything is fused, and README's table
    trainer.py      the implementations of a step, and whether their losses agree
"""
