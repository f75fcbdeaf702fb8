"""Wrong answers to the puzzles of 05_cuda_graphs_and_memory.ipynb, and unusual right ones: tests/test_puzzles.py."""

# %% call: nothing is copied in -> ^not yet: .*(expected[\s\S]*x was not copied into it)
def call(graph, buffer, out, x):
    graph.replay()
    return out.clone()


puzzles.attempt("call", call)

# %% call: the name buffer, not its memory -> ^not yet: .*(expected[\s\S]*x was not copied into it)
def call(graph, buffer, out, x):
    buffer = x
    graph.replay()
    return out.clone()


puzzles.attempt("call", call)

# %% call: the buffer gets other memory -> ^not yet: .*(the buffer lies elsewhere now)
def call(graph, buffer, out, x):
    buffer.data = x
    graph.replay()
    return out.clone()


puzzles.attempt("call", call)

# %% call: no clone -> ^not yet: .*(4 calls[\s\S]*expected[\s\S]*every replay writes its result to the same address)
def call(graph, buffer, out, x):
    buffer.copy_(x)
    graph.replay()
    return out


puzzles.attempt("call", call)

# %% call: detach is no copy -> ^not yet: .*(4 calls[\s\S]*expected[\s\S]*every replay writes its result)
def call(graph, buffer, out, x):
    buffer.copy_(x)
    graph.replay()
    return out.detach().view_as(x)


puzzles.attempt("call", call)

# %% call: cloned too early -> ^not yet: .*(expected[\s\S]*nan: no replay has computed it)
def call(graph, buffer, out, x):
    buffer.copy_(x)
    result = out.clone()
    graph.replay()
    return result


puzzles.attempt("call", call)

# %% call: copied too late -> ^not yet: .*(expected[\s\S]*x was not copied into it)
def call(graph, buffer, out, x):
    graph.replay()
    buffer.copy_(x)
    return out.clone()


puzzles.attempt("call", call)

# %% call: a cheat: the arithmetic by hand, no replay -> ^not yet: .*(replayed 0 times in a call)
def call(graph, buffer, out, x):
    return 5 * x + 1


puzzles.attempt("call", call)

# %% call: a cheat: two replays measure the graph -> ^not yet: .*(replayed 2 times in a call)
def call(graph, buffer, out, x):
    buffer.zero_()
    graph.replay()
    buffer.copy_(x)
    graph.replay()
    return out.clone()


puzzles.attempt("call", call)

# %% call: nothing is returned -> ^not yet: .*(must return a tensor; got NoneType)
def call(graph, buffer, out, x):
    buffer.copy_(x)
    graph.replay()


puzzles.attempt("call", call)

# %% call: the result goes into x -> ^not yet: .*(x was written to)
def call(graph, buffer, out, x):
    buffer.copy_(x)
    graph.replay()
    return x.copy_(out)


puzzles.attempt("call", call)

# %% call: slices, an addition for the clone
def call(graph, buffer, out, x):
    buffer[:] = x
    graph.replay()
    return out + 0


puzzles.attempt("call", call)

# %% step: a counter of Python's -> ^not yet: .*(expected[\s\S]*a constant of the graph)
count = [0]


def step(weight, grad, steps):
    count[0] += 1
    weight -= grad / count[0]


puzzles.attempt("step", step)

# %% step: steps is read on the host -> ^not yet: .*(cannot be captured.*the host reads a value)
def step(weight, grad, steps):
    steps += 1
    weight -= grad / steps.item()


puzzles.attempt("step", step)

# %% step: an if on a tensor -> ^not yet: .*(cannot be captured.*the host reads a value)
def step(weight, grad, steps):
    steps += 1
    if steps > 0:
        weight -= grad / steps


puzzles.attempt("step", step)

# %% step: steps is another tensor afterwards -> ^not yet: .*(expected[\s\S]*in place)
def step(weight, grad, steps):
    steps = steps + 1
    weight -= grad / steps


puzzles.attempt("step", step)

# %% step: weight is another tensor afterwards -> ^not yet: .*(expected[\s\S]*change weight in place)
def step(weight, grad, steps):
    steps += 1
    weight = weight - grad / steps


puzzles.attempt("step", step)

# %% step: counted behind -> ^not yet: .*(expected[\s\S]*divides by steps \+ 1)
def step(weight, grad, steps):
    weight -= grad / steps
    steps += 1


puzzles.attempt("step", step)

# %% step: the wrong sign -> ^not yet: .*(expected)
def step(weight, grad, steps):
    steps += 1
    weight += grad / steps


puzzles.attempt("step", step)

# %% step: a cheat: all three replays at once -> ^not yet: .*(expected)
def step(weight, grad, steps):
    for _ in range(3):
        steps += 1
        weight -= grad / steps


puzzles.attempt("step", step)

# %% step: NumPy -> ^not yet: .*(expected|cannot be captured)
def step(weight, grad, steps):
    steps += 1
    weight -= grad / float(steps.numpy())


puzzles.attempt("step", step)

# %% step: a print, which no replay repeats -> ^not yet: .*printed while it was captured: 'a step'[\s\S]*Hint: a replay
def step(weight, grad, steps):
    steps += 1
    print("a step")
    weight -= grad / steps


puzzles.attempt("step", step)

# %% step: a print of an address -> ^not yet: .*(it printed while it was captured[\s\S]*Print after a replay)
import sys


def step(weight, grad, steps):
    steps += 1
    sys.stdout.write(f"{weight.data_ptr()}\n")
    weight -= grad / steps


puzzles.attempt("step", step)

# %% step: a print of the value -> ^not yet: .*(cannot be captured.*the host reads a value)
def step(weight, grad, steps):
    steps += 1
    print(steps.item())
    weight -= grad / steps


puzzles.attempt("step", step)

# %% step: addcdiv_, a view of steps
def step(weight, grad, steps):
    steps.view(1).add_(torch.ones_like(steps).view(1))
    weight.addcdiv_(grad, steps.expand_as(grad), value=-1)


puzzles.attempt("step", step)

# %% saved: as it stands -> ^not yet: .*(step 15, many short[\s\S]*expected 2141.4, got 2756.4[\s\S]*with one 625)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return launches * launch_us - replay_us


puzzles.attempt("saved", saved)

# %% saved: one after the other -> ^not yet: .*(many short kernels[\s\S]*expected[\s\S]*2766 µs, the host's 91)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return (launches * launch_us + kernels_us) - (launch_us + replay_us + copy_us + kernels_us)


puzzles.attempt("saved", saved)

# %% saved: the kernels are forgotten without a graph -> ^not yet: .*(kernels that take longest[\s\S]*3000 µs, the GPU)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return launches * launch_us - max(launch_us + replay_us, copy_us + kernels_us)


puzzles.attempt("saved", saved)

# %% saved: the copy is free -> ^not yet: .*(many short kernels[\s\S]*with one 625 µs, the GPU's copy)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return max(launches * launch_us, kernels_us) - max(launch_us + replay_us, kernels_us)


puzzles.attempt("saved", saved)

# %% saved: the copy's launch is forgotten -> ^not yet: .*(a replay that costs more[\s\S]*the host launches the copy)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return max(launches * launch_us, kernels_us) - max(replay_us, copy_us + kernels_us)


puzzles.attempt("saved", saved)

# %% saved: a loss is not shown -> ^not yet: .*(kernels that take longest[\s\S]*expected -5, got 0)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    without = max(launches * launch_us, kernels_us)
    return max(0, without - max(launch_us + replay_us, copy_us + kernels_us))


puzzles.attempt("saved", saved)

# %% saved: the copy's launch is the GPU's -> ^not yet: .*(many short kernels[\s\S]*with one 625 µs, the GPU's copy)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return max(launches * launch_us, kernels_us) - max(replay_us, launch_us + copy_us + kernels_us)


puzzles.attempt("saved", saved)

# %% saved: the graph's side alone is right -> ^not yet: .*(many short kernels[\s\S]*without a graph it takes 2766 µs)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return min(launches * launch_us, kernels_us) - max(launch_us + replay_us, copy_us + kernels_us)


puzzles.attempt("saved", saved)

# %% saved: whether it pays -> ^not yet: .*(must return a number of µs; got bool)
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    return max(launches * launch_us, kernels_us) > max(launch_us + replay_us, copy_us + kernels_us)


puzzles.attempt("saved", saved)

# %% saved: four differences
def saved(launches, launch_us, kernels_us, replay_us, copy_us):
    with_graph = (launch_us + replay_us, copy_us + kernels_us)
    return max(min(a - b for b in with_graph) for a in (launches * launch_us, kernels_us))


puzzles.attempt("saved", saved)
