"""The same replacements in a program that torch.export made."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from .explanation import Explanation, replaced, sentence
from .match import arguments
from .replace import Site, rewrite
from .view import example, mode_of, traced

ASSERTION = torch.ops.aten._assert_tensor_metadata.default


def replace_in(program: ExportedProgram) -> Explanation:
    """Replace in an exported program, which is changed, what torch.compile's backend would; returns what was replaced.

    The program then holds the ops' overloads of the GPU that it was exported for, and loads after `import kernels`. Of
    one for a CPU nothing is replaced, where the ops' form is eager. It is for inference where it was exported under
    no_grad: no op then keeps what a backward reads.
    """
    dropped = drop_assertions(program.graph)
    signature, placeholders = program.graph_signature, program.graph.find_nodes(op="placeholder")
    for node in placeholders:  # the ops keep what a backward reads if a gradient is needed
        name = signature.inputs_to_parameters.get(node.name)
        if name is not None:
            node.meta["val"].requires_grad_(program.state_dict[name].requires_grad)
    # An output that is replaced gets another name, which the signature must learn.
    with program.graph_module._set_replace_hook(signature.get_replace_hook()):
        done = rewrite(program.graph_module, constants_of(program), as_operators)
    assert_again(program.graph, dropped)
    program.graph_module.recompile()
    program.validate()
    return Explanation([replaced(site) for site in done.sites], [sentence(item) for item in done.declined], graphs=1)


def drop_assertions(graph: fx.Graph) -> list[tuple[fx.Node, dict]]:
    """Erase what is asserted of the dtype, device and layout of a value that the program itself computes: an assertion
    would be one more reader of a value that a replacement no longer computes. Returns the values with what it was."""
    dropped = []
    for node in graph.find_nodes(op="call_function", target=ASSERTION):
        asserted = {name: what for name, what in arguments(node).items() if what is not None}
        value = asserted.pop("a")
        of_type = asserted.keys() <= {"dtype", "device", "layout"}
        if value.op != "placeholder" and of_type and all(getattr(example(value), k) == v for k, v in asserted.items()):
            dropped.append((value, asserted))
            graph.erase_node(node)
    return dropped


def assert_again(graph: fx.Graph, dropped: list[tuple[fx.Node, dict]]) -> None:
    """Assert it of the values that are still computed: an input of another dtype than was exported is refused by it."""
    left = set(graph.nodes)
    for value, asserted in dropped:
        if value in left:
            with graph.inserting_after(value):
                graph.call_function(ASSERTION, (value,), asserted)


def constants_of(program: ExportedProgram) -> dict[fx.Node, Tensor]:
    """The placeholders that are integers of no state_dict, and written by nobody: constants of the program."""
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    written = set(signature.buffers_to_mutate.values())
    values = {}
    for spec in signature.input_specs:
        buffer = spec.kind is InputKind.BUFFER and spec.persistent is False
        if (buffer or spec.kind is InputKind.CONSTANT_TENSOR) and spec.target not in written:
            values[placeholders[spec.arg.name]] = program.constants[spec.target]
    return {node: tensor for node, tensor in values.items() if not tensor.is_floating_point()}


def as_operators(site: Site, inputs: list[fx.Node]) -> fx.Node:
    """The replacement traced to operators: an exported program holds no Python functions."""
    graph = site.place.graph

    def function(*values):
        return site.found.build(lambda operation, *args, **kwargs: operation(*args, **kwargs), *values)

    # By this the ops know that they are traced.
    with mock.patch.object(torch.compiler, "_is_compiling_flag", True):
        part = traced(function, [example(node) for node in inputs], mode_of(graph))
    return graph.graph_copy(part.graph, dict(zip(part.graph.find_nodes(op="placeholder"), inputs, strict=True)))
