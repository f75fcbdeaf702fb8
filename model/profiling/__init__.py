"""Where a training step's time goes: record a torch.profiler trace, read it as tables.

    recording.py   a step → its trace and run.json        trace_file.py  a trace that names no machine, user or path
    trace.py       a trace file → tables of events        facts.py      what a step costs, kernel by kernel
    traced_steps.py  the lecture's steps, and recording them  tables.py     tables for a terminal and traces/README.md
    operators.py   the operators of a call, without a trace  memory.py   the allocator's own history
    phases.py      hash, look-up, forward, …              recorded_cases.py  the modules whose Triton is recorded

`python -m model.profiling --help` lists the commands. A trace's fields are those of Kineto, the library behind
torch.profiler (https://github.com/pytorch/kineto). HolisticTraceAnalysis 0.5 reads the same files, but none without a
GPU's work; what is wanted here are sums and unions of intervals, which pandas and NumPy do.
"""

from data.cli import command_imports

with command_imports(__name__):
    from model.profiling.facts import StepFacts, compare, kernel_us, step_facts, summarize
    from model.profiling.memory import allocated_over_time, memory_snapshot
    from model.profiling.operators import Operator, Operators
    from model.profiling.recorded_cases import generated_cases
    from model.profiling.recording import record, step_times
    from model.profiling.tables import TRACES, recorded_steps
    from model.profiling.trace import Trace, read
    from model.profiling.trace_file import MAX_BYTES, ROOT, export
    from model.profiling.traced_steps import TRACED_STEPS, TracedStep, training_step

__all__ = [
    "MAX_BYTES",
    "ROOT",
    "TRACED_STEPS",
    "TRACES",
    "Operator",
    "Operators",
    "StepFacts",
    "Trace",
    "TracedStep",
    "allocated_over_time",
    "compare",
    "export",
    "generated_cases",
    "kernel_us",
    "memory_snapshot",
    "read",
    "record",
    "recorded_steps",
    "step_facts",
    "step_times",
    "summarize",
    "training_step",
]
