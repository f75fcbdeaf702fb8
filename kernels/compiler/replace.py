"""Whether calls may be replaced by an op without changing anything else, and the replacement in Dynamo's graph.

The op stands where the last of the calls stood, or, of several results, before the first reader of one. So what is
between the calls must have no other reader, and nothing that lies between the first and the last may write to memory,
change a mode, or be unknown. What an input is computed of there, ids[k], say, is moved before the op.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from . import add_mul_activation, add_relu, interaction, look_ups, lookup_interact, mlp, outer, whole
from .columns import join_columns
from .constants import Constants, base_of, may_write_inputs, readable
from .forms import why_left
from .match import Declined, Found, Miss, arguments, is_call, name_of, same_size, value
from .padding import has_sparse_gradients, pad_pairs
from .pointwise import PRODUCTS
from .view import NUMBERS, View, example

NESTING = "_increment_nesting"  # how the functions end that open a transform of torch.func
TRANSFORM = "a transform of torch.func is around it, for which the ops have no rule"
INFERENCE = "torch.inference_mode begins within the graph, where AOTAutograd cannot trace the ops' views"
AUTOCAST_IS_SET = "a function sets torch.autocast within the graph: where it is on is not followed"
LAYERS = torch.ops.aten.linear.default, torch.ops.aten.addmm.default, torch.ops.aten.batch_norm.default
EXPORTED_UNDER_AUTOCAST = "exported under torch.autocast, which the program does not hold: who runs it sets it or not"


@dataclass
class Site:
    """Where a Found lies in the graph: the calls it replaces, in order, those with a result, by which of the results it
    is, its inputs, the call before which the replacement stands, and the calls that are moved before it."""

    found: Found
    calls: list[fx.Node]
    results: dict[fx.Node, int]
    inputs: list[fx.Node]
    place: fx.Node
    moved: list[fx.Node]


@dataclass
class Rewritten:
    """A graph in which what was found is replaced.

    original: the graph as it was. sites, declined: what was replaced, and what was not; their nodes are the graph's
    own. read: the placeholders whose values were looked at, by position. in_place: those that are read where they lie,
    in a buffer of several.
    """

    original: fx.GraphModule
    sites: list[Site] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    in_place: set[int] = field(default_factory=set)


def rewrite(gm: fx.GraphModule, values: Mapping[fx.Node, Tensor], insert: Callable | None = None) -> Rewritten:
    """Replace in a graph whatever a pattern finds.

    gm: Dynamo's, or torch.export's. values: the parameters and buffers by their placeholders. insert: what adds a
    site's replacement to the graph, by default as calls of the ops' public functions.
    """
    done = Rewritten(fx.GraphModule(gm, copy.deepcopy(gm.graph)))
    placeholders = gm.graph.find_nodes(op="placeholder")
    for reason, nodes in (
        (AUTOCAST_IS_SET, [node for node in gm.graph.nodes if name_of(node).startswith("set_autocast_")]),
        (EXPORTED_UNDER_AUTOCAST, [node for node in gm.graph.nodes if insert is not None and is_cast(node)]),
    ):
        if nodes:
            done.declined.append(Declined("every op", nodes[0], reason))
            return done
    view = View(gm.graph)
    for answer in answers(view, values):
        try:
            if isinstance(answer, Found):
                for site in sites_of(view, answer):
                    if reason := why_left(site.found):
                        raise Miss(reason, site.found.outs[-1])
                    done.sites.append(site)
                    done.read |= {placeholders.index(view.source[node]) for node in answer.constants}
                    done.in_place |= {placeholders.index(view.source[node]) for node in answer.memory}
                continue
        except Miss as miss:
            answer = Declined(answer.op, miss.node, miss.reason)
        done.declined.append(Declined(answer.op, view.origin.get(answer.node, answer.node), answer.reason))
    order = {node: position for position, node in enumerate(gm.graph.nodes)}
    done.sites.sort(key=lambda site: order[site.place])
    done.declined.sort(key=lambda declined: order.get(declined.node, 0))
    replaced: dict[fx.Node, fx.Node] = {}
    for site in done.sites:
        inputs = [replaced.get(node, node) for node in site.inputs]
        new = replacement(site, inputs, insert or as_calls)
        replaced |= {call: new[k] for call, k in site.results.items()}
    gone = set().union(*(site.calls for site in done.sites))
    for node in reversed(gm.graph.nodes):
        if node in gone and not node.users:
            gm.graph.erase_node(node)
    join_columns(gm.graph)
    columns_of = {} if has_sparse_gradients(view.graph) else pad_pairs(gm.graph)
    for site in done.sites:
        for node in {replaced[call] for call in site.results} & columns_of.keys():
            site.found.note += f", rows filled up to {columns_of[node]} columns"
    gm.graph.lint()
    gm.recompile()
    return done


def answers(view: View, values: Mapping[fx.Node, Tensor]) -> list[Found | Declined]:
    """What the patterns say, the larger ones first. What one declines is not told where another op is found."""
    constants = Constants(view, readable(view, values))
    parameters = {} if may_write_inputs(view) else {view.image[node]: tensor for node, tensor in values.items()}
    outers = list(outer.find(view))
    others = {node for answer in outers if isinstance(answer, Found) for node in answer.nodes}
    patterns = (
        whole.find(view, constants, site_of), lookup_interact.find(view, constants, site_of),
        interaction.find(view, constants), outers,
        mlp.find(view, parameters, others),
        add_mul_activation.find(view), add_relu.find(view),
        look_ups.find(view), not_looked_at(view),
    )  # fmt: skip
    matches, declined, owners = [], [], {}
    for answer in itertools.chain(*patterns):
        if isinstance(answer, Declined):
            declined.append(answer)
        elif not owners.keys() & answer.nodes:
            matches.append(answer)
            owners |= dict.fromkeys(answer.nodes, answer.op)

    def is_told(item: Declined) -> bool:
        owner = owners.get(item.node, item.op)
        # Of a composite why it goes in parts, unless a whole model is found, of which it would be a part.
        return owner == item.op or (item.op in (whole.OP, lookup_interact.OP) and owner != whole.OP)

    declined = filter(is_told, declined)
    unique = {(item.op, item.node, item.reason): item for item in declined}
    return [*matches, *unique.values()]


def not_looked_at(view: View) -> Iterator[Declined]:
    """torch.utils.checkpoint and the like, which run a graph of their own, and the transforms of torch.func."""
    for node in view.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            yield Declined("every op", node, f"what lies within {node.target} is not looked at")
        elif name_of(node).endswith(NESTING):
            yield Declined("every op", node, TRANSFORM)


# ------------------------------------------------------------------------------------------- whether it may be replaced

def is_cast(node: fx.Node) -> bool:
    """Whether a call is a product in another dtype than its factors', as torch.autocast's are."""
    factors = [example(source) for source in node.all_input_nodes]
    is_product = is_call(node, *PRODUCTS, torch.ops.aten.einsum.default)
    return is_product and any(isinstance(one, Tensor) and one.dtype != example(node).dtype for one in factors)


def sites_of(view: View, match: Found) -> Iterator[Site]:
    """Where a match may be replaced; Miss if nowhere. Where results need not go together, those that may are replaced
    together, and Miss is of the rest."""
    try:
        yield site_of(view, match)
        return
    except Miss as miss:
        if match.of is None:
            raise
        first = miss
    some: list[int] = []
    for position in range(len(match.outs)):
        with suppress(Miss):
            site_of(view, match.of([*some, position]))
            some.append(position)
    if len(some) > 1:
        yield site_of(view, match.of(some))
    rest = [position for position in range(len(match.outs)) if position not in some]
    if not some or len(rest) < 2:
        raise first
    yield from sites_of(view, match.of(rest))


def site_of(view: View, match: Found) -> Site:
    """Where a Found may be replaced; Miss, with the condition that fails, if it may not."""
    inside = set(match.nodes)
    calls = {view.origin[node] for node in inside} | {n for n, image in view.image.items() if image in inside}
    of_out = {out: k for k, out in enumerate(match.outs)}
    images = {node: image for node, image in view.image.items() if isinstance(image, fx.Node)}
    results = {node: of_out[image] for node, image in images.items() if image in of_out}
    if {*results.values()} != {*of_out.values()} or any(node not in view.source for node in match.inputs):
        raise Miss("a result or an input that is no value of the program's", match.outs[0])
    for node in view.graph.nodes:
        if view.origin[node] in calls and node not in inside and node.op == "call_function" and node.users:
            raise Miss(f"{node.target} is part of the same call", node)
    for call in calls - results.keys():
        if any(reader not in calls for reader in call.users):
            raise Miss("an intermediate is read by others too", call)
    check_tensors(match)
    inputs = [view.source[node] for node in match.inputs]
    order = {node: position for position, node in enumerate(next(iter(results)).graph.nodes)}
    firsts = {k: call for call, k in reversed(results.items())}  # the first call that has each result
    last = max(firsts.values(), key=order.__getitem__)
    place = min([last, *(user for call in results for user in call.users if user not in calls)], key=order.__getitem__)
    check_between(view, calls, last)
    moved = calls_after(place, inputs, order)
    for call in moved:
        check_movable(view, call)
    return Site(match, sorted(calls, key=order.__getitem__), results, inputs, place, moved)


def calls_after(place: fx.Node, inputs: list[fx.Node], order: Mapping[fx.Node, int]) -> list[fx.Node]:
    """The calls at or behind a place that inputs are computed by, in order."""
    calls, left = set(), list(inputs)
    while left:
        node = left.pop()
        if order[node] >= order[place] and node not in calls:
            calls.add(node)
            left += node.all_input_nodes
    return sorted(calls, key=order.__getitem__)


def check_movable(view: View, call: fx.Node) -> None:
    """Miss unless a call is of integers and of views of the graph's inputs alone, which no op makes, and not random."""
    targets = [node.target for node, origin in view.origin.items() if origin is call]
    if call.op == "placeholder" or any(is_computed(view, node) for node in (call, *call.all_input_nodes)):
        raise Miss("a result is read before an input of another look-up is computed", call)
    if any(torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets):
        raise Miss("random numbers are drawn between the parts", call)


def is_computed(view: View, node: fx.Node) -> bool:
    """Whether a node of the original has floats that are no view of an input of the graph."""
    if not (isinstance(example(node), Tensor) and example(node).is_floating_point()):
        return False
    image = view.image[node]
    return not isinstance(image, fx.Node) or base_of(image).op != "placeholder"


def check_tensors(match: Found) -> None:
    """Miss unless all are plain dense tensors of one device, and the result is contiguous as the op's is."""
    device = value(match.outs[0]).device
    for node in (*match.inputs, *match.outs):
        tensor = value(node)
        if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
            raise Miss(f"a {type(tensor).__name__} is no plain dense tensor", node)
        if tensor.device != device and tensor.dim() and tensor.is_floating_point():  # indices may lie elsewhere
            raise Miss(f"a tensor on {tensor.device} beside one on {device}", node)
    for out in match.outs:
        expected = 1
        if 0 in [size for size in value(out).shape if isinstance(size, int)]:
            continue
        for size, stride in reversed(list(zip(value(out).shape, value(out).stride(), strict=True))):
            if not same_size(stride, expected) and size != 1:
                raise Miss("the result is not contiguous", out)
            expected = expected * size


def check_between(view: View, calls: set[fx.Node], last: fx.Node) -> None:
    """Miss if what lies between the first and the last call could see, or make, a difference."""
    seen: dict[fx.Node, list[fx.Node]] = {}
    for node, call in view.origin.items():
        seen.setdefault(call, []).append(node)
    contexts, started = [], False
    for call in last.graph.nodes:
        if call is last:
            break
        change_contexts(contexts, call)
        started = started or call in calls
        if not started or call in calls or call.op in ("placeholder", "get_attr") or makes_no_difference(call):
            continue
        for node in seen.get(call, ()):
            is_operator = isinstance(node.target, torch._ops.OpOverload)
            if node in view.opaque and not (is_operator and node.target.namespace == "aten"):
                raise Miss(f"{name_of(call)} stands between the parts", call)
            if is_operator and writes(node) and not is_seen_by_none(node):
                raise Miss(f"{node.target} writes in place between the parts", call)
    for reason in filter(None, contexts):
        raise Miss(reason, last)


def writes(node: fx.Node) -> bool:
    """Whether an operator writes to a tensor. No schema says that norms in training write to their statistics."""
    schema = node.target._schema
    if schema.name.endswith(("batch_norm", "instance_norm")):
        kwargs = arguments(node)
        return schema.is_mutable or bool(kwargs.get("training", kwargs.get("use_input_stats", True)))
    return schema.is_mutable


def is_seen_by_none(node: fx.Node) -> bool:
    """Whether a call writes to what a layer or a BatchNorm has just made, and nobody else reads: an activation in
    place."""
    tensor = node.args[0] if node.args else None
    return mlp.activation_of(node) is not None and is_call(tensor, *LAYERS) and len(tensor.users) == 1


def change_contexts(contexts: list[str], call: fx.Node) -> None:
    """Keep the list of the contexts that are open: why an op would do something else there; "" where it would not."""
    name = name_of(call)
    if name == "_enter_inference_mode":
        contexts.append(INFERENCE if call.args[0] else "")
    elif name.endswith(NESTING):
        contexts.append(TRANSFORM)
    elif (name == "_exit_inference_mode" or name.endswith("_decrement_nesting")) and contexts:
        contexts.pop()


def makes_no_difference(call: fx.Node) -> bool:
    """Whether a call only computes numbers, or asserts something of them, or takes a value out of a tuple; or sets
    torch.autocast, under which an op computes in the dtype of its inputs; or tells that a module was made, as a forward
    that makes one does."""
    if name_of(call) in ("_enter_autocast", "_exit_autocast", "_log_api_usage_once"):
        return True
    if call.target is operator.getitem or call.target is torch.ops.aten._assert_scalar.default:
        return True
    return isinstance(example(call), NUMBERS)


# ------------------------------------------------------------------------------------------------------ the replacement


def replacement(site: Site, inputs: list[fx.Node], insert: Callable) -> list[fx.Node]:
    """Compute a site's results at its place; returns their nodes."""
    graph, last = site.place.graph, next(call for call in reversed(site.calls) if call in site.results)
    for call in site.moved:
        site.place.prepend(call)
    present = set(graph.nodes)
    with graph.inserting_before(site.place):
        new = insert(site, inputs)
    new = list(new) if isinstance(new, list | tuple) else [new]
    shown = {key: last.meta[key] for key in ("nn_module_stack", "stack_trace") if key in last.meta}
    for node in set(graph.nodes) - present:
        node.meta |= shown
    for result, k in site.results.items():
        result.replace_all_uses_with(new[k])
    return new


def as_calls(site: Site, inputs: list[fx.Node]) -> fx.Node | list[fx.Node]:
    """The replacement as calls of the ops' public functions, which AOTAutograd traces with what the model becomes."""
    graph = site.place.graph
    new = site.found.build(lambda function, *args, **kwargs: graph.call_function(function, args, kwargs), *inputs)
    for result, k in site.results.items():
        node = new[k] if isinstance(new, list) else new
        node.meta["example_value"] = example(result)
    return new
