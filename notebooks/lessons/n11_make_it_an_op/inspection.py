"""What PyTorch says of an op: opcheck in a line, the graph that torch.compile makes, our declaration's text."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.ops.add_relu import op as add_relu_op
from lessons.n11_make_it_an_op import puzzles


def opcheck(op: Callable, *arguments: Tensor) -> None:
    """Print whether torch.library.opcheck passes, or what it finds first. Gradients are tested of what requires one."""
    what = f"x {list(arguments[0].shape)}, strides {tuple(arguments[0].stride())}"
    try:
        passed = torch.library.opcheck(op, arguments)
    except Exception as error:
        print(f"{what}: {puzzles.said(error).partition('tensor metadata: ')[2] or puzzles.said(error)}")
    else:
        print(f"{what}: {len(passed)} tests passed")


def graph_of(function: Callable, *arguments: Tensor) -> torch.fx.GraphModule:
    """The one graph that torch.compile hands to its backend; an error where there would be several."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    torch.compile(function, backend=keep, fullgraph=True)(*arguments)
    return graphs[0]


def exported_and_loaded(module: torch.nn.Module, *arguments: Tensor) -> torch.export.ExportedProgram:
    """The module exported, saved, and loaded again; the file is in memory."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, arguments), file)
    file.seek(0)
    return torch.export.load(file)


def show_declaration() -> None:
    """Print add_relu's, from kernels/ops/add_relu/op.py."""
    text = inspect.getsource(add_relu_op)
    print(text[text.index("OP = Op(") : text.index("\n)\n") + 2])
