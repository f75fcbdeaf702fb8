"""Where a training step's time goes: record a torch.profiler trace, read it as tables, draw it.

    recording.py   a step → its trace and run.json        trace_file.py  a trace that names no machine, user or path
    trace.py       a trace file → tables of events        facts.py      what a step costs, kernel by kernel
    drawing.py     a step of each trace as a timeline     tables.py     tables for a terminal and traces/README.md
    story.py       the lecture's steps, and recording them  generated.py  the modules whose Triton is recorded
    operators.py   the operators of a call, without a trace  memory.py   the allocator's own history
    phases.py      hash, look-up, forward, …      floors.py      the least time of a step's operators
    launches.py    what a launch costs            lanes.py       host and GPU side by side, drawn
    puzzles.py     the lecture's, on queues       here.py        the lecture's cells "On your machine"

`python -m model.profiling --help` lists the commands. A trace's fields are those of Kineto, the library behind
torch.profiler (https://github.com/pytorch/kineto). HolisticTraceAnalysis 0.5 reads the same files, but none without a
GPU's work; what is wanted here are sums and unions of intervals, which pandas and NumPy do.
"""

from data.cli import command_imports

with command_imports(__name__):
    from model.profiling.drawing import timeline
    from model.profiling.facts import StepFacts, compare, kernel_us, step_facts, summarize
    from model.profiling.generated import generated_cases
    from model.profiling.memory import allocated_over_time, memory_snapshot
    from model.profiling.operators import Operator, Operators
    from model.profiling.recording import record, step_times
    from model.profiling.story import STORY, StoryStep, training_step
    from model.profiling.tables import TRACES, recorded_steps
    from model.profiling.trace import Trace, read
    from model.profiling.trace_file import MAX_BYTES, ROOT, export

__all__ = [
    "MAX_BYTES",
    "ROOT",
    "STORY",
    "TRACES",
    "Operator",
    "Operators",
    "StepFacts",
    "StoryStep",
    "Trace",
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
    "timeline",
    "training_step",
]
