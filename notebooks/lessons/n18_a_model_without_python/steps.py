"""Where the time of a batch goes in a DLRM that left Python: by steps, in AOTInductor's package and in onnxruntime."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.profiler import ProfilerActivity, profile

from model.export import OPTIONS
from model.serving.exported import runner_of

CALLS = 50
REST = "the rest"


@dataclass(frozen=True)
class Step:
    """A step of the model, and what its operators' names hold in the package and in onnxruntime."""

    name: str
    package: str
    onnx: tuple[str, ...]


STEPS = (
    Step("rows of the ids", "table_lookup", ("LabelEncoder",)),
    Step("products of the vectors", "cpu_bmm", ("MatMul",)),
    Step("choice of the pairs", "cpp_fused_index", ("Transpose", "GatherND")),
    Step("linear layers", "cpu_addmm", ("Gemm",)),
)


def of_package(served: nn.Module, *inputs: Tensor) -> dict[str, float]:
    """ms of each step in a call of the package of served, whose generated kernels tell the profiler of themselves.

    inputs: of any number of rows, the first dimension of each. The package is compiled for this, which takes a while.
    """
    batch = Dim("batch")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        program = torch.export.export(served, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))
        options = OPTIONS | {"cpp.enable_kernel_profile": True, "aot_inductor.package_constants_in_so": True}
        path = str(Path(folder) / "profiled.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=options)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        (code,) = Path(folder, "profiled").rglob("*.so")
        runner = runner_of(code, torch.device("cpu"))
        runner.run([*inputs])
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(CALLS):
                runner.run([*inputs])
    outer = [event for event in profiler.events() if event.cpu_parent is None]
    times = [(event.name, 1e-3 * event.cpu_time_total) for event in outer]
    return by_step(times, CALLS, [(step.package,) for step in STEPS])


def of_onnx(file: Path, **inputs: Tensor) -> dict[str, float]:
    """ms of each step in a call of onnxruntime on one thread, from the profile that it writes itself."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/profile"
        session = onnxruntime.InferenceSession(file, options)
        for _ in range(CALLS):
            session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    times = [(node["args"]["op_name"], 1e-3 * node["dur"]) for node in nodes]
    return by_step(times, CALLS, [step.onnx for step in STEPS])


def by_step(times: Sequence[tuple[str, float]], calls: int, names: Sequence[Sequence[str]]) -> dict[str, float]:
    """The time of each of STEPS, and of the rest, in the call in which it was shortest.

    Args:
        times: (operator, time) in order, those of one call behind those of the one before.
        names: of each step, what its operators' names hold.

    Raises:
        LookupError: a step without an operator; calls of different lengths.
    """
    if len(times) % calls:
        raise LookupError(f"{len(times)} operators in {calls} calls")
    per_call = len(times) // calls
    sums = [dict.fromkeys([step.name for step in STEPS] + [REST], 0.0) for _ in range(calls)]
    for place, (operator, time) in enumerate(times):
        fits = (step.name for step, held in zip(STEPS, names, strict=True) if any(name in operator for name in held))
        sums[place // per_call][next(fits, REST)] += time
    fastest = {name: min(call[name] for call in sums) for name in sums[0]}
    if missing := [name for name, time in fastest.items() if not time and name != REST]:
        raise LookupError(f"no operator of {', '.join(missing)}")
    return fastest
