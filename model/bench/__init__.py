"""What training and prediction cost on a GPU, eager beside fused: `python -m model.bench`.

    training.py     steps and epochs; the command
    whole_model.py  the parts in which everything is fused, and their table
    pages.py        what --write writes: README's results, model/README's table, traces/step.svg
    step_picture.py the picture: a step on one time axis
    compiled_ways.py torch.compile as it is set best
    trainer.py      the implementations of a step, their state, and the memory that they take
    shadow.py       whether a step is right: the same step in float64, from where it began
    steps.py        their steps by turns
    backend.py      torch.compile by backend="fused_kernels" beside Inductor; a command of its own
    errors.py       results and gradients of four models (models.py) beside float64 and eager; a command of its own
    losses.py       the losses of 1,000 steps beside eager's; a command of its own
    choices.py      whether the fastest of our own ways is taken; a command of its own
    counters.py     what binds our kernels, by Nsight Compute; a command of its own
    recorded.py     the records of these commands
    step_memory.py  a step's memory with the look-ups within the interaction's kernel, and without; a command of its own
    scale/          what a step costs on several GPUs, by arithmetic; a command of its own
    plain_loop.py   on a CPU, training from Parquet beside a loop over tensors in memory; a command of its own
"""
