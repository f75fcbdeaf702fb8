"""Paper cuts: what slows a training step and computes nothing that the model needs, each measured alone, by turns."""
