"""Answers to the puzzles of 24_a_compiler_that_says_why_not.ipynb, a section a puzzle."""

# %% fool
def silent(x, bias):
    total = x + bias
    total.mul_(2)
    return torch.relu(total)


def loud(x, bias):
    return torch.relu(x + 1.0)


solved = puzzles.attempt("fool", silent, loud)

# %% rewrite
def rewrite(graph):
    for relu in list(graph.nodes):
        total = relu.args[0] if relu.target in RELUS and relu.args else None
        if not isinstance(total, torch.fx.Node) or total.target not in ADDS or total.kwargs or len(total.users) > 1:
            continue
        if not all(isinstance(term, torch.fx.Node) for term in total.args):
            continue
        for x, bias in (total.args, total.args[::-1]):
            a, b, out = value(x), value(bias), value(relu)
            fits = a.dim() > 1 and a.shape == out.shape and b.shape == a.shape[-1:] and out.is_contiguous()
            if fits and a.dtype == b.dtype and a.is_floating_point():
                with graph.inserting_before(total):  # what is written to the operands later, the sum has not seen
                    fused = graph.call_function(kernels.add_relu, (x, bias))
                fused.meta = relu.meta
                relu.replace_all_uses_with(fused)
                graph.erase_node(relu)
                graph.erase_node(total)
                break


solved = puzzles.attempt("rewrite", rewrite)

# %% shadow
import copy


def close(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


def shadow(backend, differs):
    def both(gm, inputs):
        original = copy.deepcopy(gm)
        compiled = backend(gm, inputs)

        def run(*inputs):
            copies = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in inputs]
            tried, right = compiled(*copies), original(*inputs)
            if not all(close(a, b) for a, b in zip(tried, right, strict=True)):
                differs.append((tried, right))
            return right

        return run

    return both


solved = puzzles.attempt("shadow", shadow)
