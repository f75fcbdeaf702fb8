"""CUDA graphs: one by hand, a model of one that runs on a CPU, what they cost in memory, when a replay pays."""
