"""Wrong answers to the puzzles of 11_make_it_an_op.ipynb, and unusual right ones: see test_puzzles.py."""

# %% schema: returns what it wrote -> ^not yet: [\s\S]*(returns nothing: a result that is the argument)
schema = "(Tensor(a!) total, Tensor x, float scale) -> Tensor(a!)"
solved = puzzles.attempt("schema", schema)

# %% schema: the wrong one is written -> ^not yet: [\s\S]*(case x: it is said to be written)
schema = "(Tensor total, Tensor(a!) x, float scale) -> ()"
solved = puzzles.attempt("schema", schema)

# %% schema: both are written -> ^not yet: [\s\S]*(case x: it is said to be written[\s\S]*What is read alone)
schema = "(Tensor(a!) total, Tensor(b!) x, float scale) -> ()"
solved = puzzles.attempt("schema", schema)

# %% schema: an alias that is not written -> ^not yet: [\s\S]*(case total, compiled[\s\S]*the ! says written)
schema = "(Tensor(a) total, Tensor x, float scale) -> ()"
solved = puzzles.attempt("schema", schema)

# %% schema: no parentheses -> ^not yet: [\s\S]*(case the text[\s\S]*The form is)
schema = "Tensor(a!) total, Tensor x, float scale"
solved = puzzles.attempt("schema", schema)

# %% schema: an integer -> ^not yet: [\s\S]*(case the arguments[\s\S]*Names and types)
schema = "(Tensor(a!) total, Tensor x, int scale) -> ()"
solved = puzzles.attempt("schema", schema)

# %% schema: no text -> ^not yet: [\s\S]*(case a string: expected str)
schema = print
solved = puzzles.attempt("schema", schema)

# %% schema: another name, and a default
schema = "(Tensor(memory!) total, Tensor x, *, float scale=1.0) -> ()"
solved = puzzles.attempt("schema", schema)

# %% schema: x in the same memory -> ^not yet: [\s\S]*(case x: it is said to share[\s\S]*What is read alone)
schema = "(Tensor(a!) total, Tensor(a) x, float scale) -> ()"
solved = puzzles.attempt("schema", schema)

# %% schema: with a name -> ^not yet: [\s\S]*(case the text: it begins with lecture::add[\s\S]*begin with the bracket)
schema = "lecture::add(Tensor(a!) total, Tensor x, float scale) -> ()"
solved = puzzles.attempt("schema", schema)

# %% fake: the checker's own op -> ^not yet: [\s\S]*(case the op itself)
def fake(x):
    return puzzles.pair_sums(x)


solved = puzzles.attempt("fake", fake)

# %% fake: a loop without an end -> ^not yet: [\s\S]*(case time: stopped after 3 s)
def fake(x):
    while True:
        pass


kept, puzzles.SECONDS = puzzles.SECONDS, 3
solved = puzzles.attempt("fake", fake)
puzzles.SECONDS = kept

# %% fake: every second column -> ^not yet: [\s\S]*(case 4×6: strides)
def fake(x):
    return x[:, 1::2].float()


solved = puzzles.attempt("fake", fake)

# %% fake: the dtype of x -> ^not yet: [\s\S]*(case 4×6 bfloat16: dtype[\s\S]*kept in float32)
def fake(x):
    return x.new_empty(x.shape[0], x.shape[1] // 2)


solved = puzzles.attempt("fake", fake)

# %% fake: rounded up -> ^not yet: [\s\S]*(case 3×7: shape[\s\S]*rounded down)
def fake(x):
    return x.new_empty(x.shape[0], (x.shape[1] + 1) // 2, dtype=torch.float32)


solved = puzzles.attempt("fake", fake)

# %% fake: the strides of x -> ^not yet: [\s\S]*(case 4×6 transposed: strides[\s\S]*empty_like keeps)
def fake(x):
    return torch.empty_like(x[:, : x.shape[1] // 2], dtype=torch.float32)


solved = puzzles.attempt("fake", fake)

# %% fake: on the CPU -> ^not yet: [\s\S]*(case another device: device[\s\S]*where x does)
def fake(x):
    return torch.empty(x.shape[0], x.shape[1] // 2)


solved = puzzles.attempt("fake", fake)

# %% fake: sizes as numbers -> ^not yet: [\s\S]*(case 4×6, 5×10, 7×8: expected one graph[\s\S]*this number alone)
def fake(x):
    return x.new_empty(int(x.shape[0]), int(x.shape[1]) // 2, dtype=torch.float32)


solved = puzzles.attempt("fake", fake)

# %% fake: reads the numbers -> ^not yet: [\s\S]*(case 4×6: [\s\S]*no numbers to read)
def fake(x):
    return x.new_empty(x.shape[0], round(x.sum().item()), dtype=torch.float32)


solved = puzzles.attempt("fake", fake)

# %% fake: nothing -> ^not yet: [\s\S]*(expected a tensor, got NoneType)
def fake(x):
    return None


solved = puzzles.attempt("fake", fake)

# %% fake: ones for one shape -> ^not yet: [\s\S]*(expected one graph)
def fake(x):
    return torch.empty((4, 3) if x.shape == (4, 6) else (x.shape[0], x.shape[1] // 2), device=x.device)


solved = puzzles.attempt("fake", fake)

# %% fake: computed on fake tensors
def fake(x):
    pairs = x[:, : x.shape[1] // 2 * 2].float()
    return pairs[:, ::2].contiguous() + pairs[:, 1::2].contiguous()


solved = puzzles.attempt("fake", fake)

# %% gradient: not summed -> ^not yet: [\s\S]*(of w: expected \[3\], got \[1, 3\][\s\S]*over the rows)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    x, w, out = ctx.saved_tensors
    return grad * w * (out > 0), grad * x * (out > 0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: relu forgotten -> ^not yet: [\s\S]*(the gradient of x: at [\s\S]*where out is above 0)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    x, w, _ = ctx.saved_tensors
    return grad * w, (grad * x).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: nothing -> ^not yet: [\s\S]*(expected a tensor, got None)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    return None, None


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: one gradient of two -> ^not yet: [\s\S]*(case 1×3: RuntimeError[\s\S]*a gradient for each input)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    _, w, out = ctx.saved_tensors
    return grad * w * (out > 0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: kept as attributes -> ^not yet: [\s\S]*(case x changed after the forward[\s\S]*an attribute of ctx)
def setup_gate(ctx, inputs, output):
    ctx.x, ctx.w, ctx.out = *inputs, output


def backward_gate(ctx, grad):
    passed = grad * (ctx.out > 0)
    return passed * ctx.w, (passed * ctx.x).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: the other's gradient -> ^not yet: [\s\S]*(the gradient of x: )
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    x, w, out = ctx.saved_tensors
    return grad * x * (out > 0), (grad * w * (out > 0)).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: grad left out -> ^not yet: [\s\S]*(the gradient of x: at)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    x, w, out = ctx.saved_tensors
    return w * (out > 0), (x * (out > 0)).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: the result as an attribute -> ^not yet: [\s\S]*(case the result changed after the forward)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.out = output


def backward_gate(ctx, grad):
    x, w = ctx.saved_tensors
    passed = grad * (ctx.out > 0)
    return passed * w, (passed * x).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: written into grad -> ^not yet: [\s\S]*(write to none, grad included)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    x, w, out = ctx.saved_tensors
    grad.mul_(out > 0)
    return grad * w, (grad * x).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: the derivatives are kept, not what they are made of
def setup_gate(ctx, inputs, output):
    x, w = inputs
    ctx.save_for_backward(w * (output > 0), x * (output > 0))


def backward_gate(ctx, grad):
    of_x, of_w = ctx.saved_tensors
    return grad * of_x, (grad * of_w).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% gradient: other names -> ^not yet: [\s\S]*(unexpected keyword[\s\S]*setup_context\(ctx, inputs, output\))
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    return grad, grad


solved = puzzles.attempt("gradient", (lambda c, i, o: None, backward_gate))

# %% gradient: one function -> ^not yet: [\s\S]*(expected \(setup_context, backward\))
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    return grad, grad


solved = puzzles.attempt("gradient", backward_gate)

# %% gradient: the sign of x * w, and a product of matrices
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward_gate(ctx, grad):
    x, w = ctx.saved_tensors
    passed = torch.where(x * w > 0, grad, 0)
    return w * passed, torch.einsum("rc,rc->c", passed, x)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))

# %% graph: always divided -> ^not yet: [\s\S]*(case a maximum below 1: at)
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / y.max()


solved = puzzles.attempt("graph", scaled)

# %% graph: never divided -> ^not yet: [\s\S]*(case a maximum above 1: at)
def scaled(x, bias):
    y = add_relu(x, bias)
    return y


solved = puzzles.attempt("graph", scaled)

# %% graph: the formula in place of the op -> ^not yet: [\s\S]*(lecture.add_relu[\s\S]*was not the reason)
def scaled(x, bias):
    y = torch.relu(x + bias)
    return y / y.max().clamp(min=1)


solved = puzzles.attempt("graph", scaled)

# %% graph: the op is called, and not used -> ^not yet: [\s\S]*(lecture.add_relu, its result used)
def scaled(x, bias):
    add_relu(x, bias)
    y = torch.relu(x + bias)
    return y / y.max().clamp(min=1)


solved = puzzles.attempt("graph", scaled)

# %% graph: a maximum a column -> ^not yet: [\s\S]*(case a maximum above 1: at)
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / y.max(dim=0).values.clamp(min=1)


solved = puzzles.attempt("graph", scaled)

# %% graph: bool() of a tensor -> ^not yet: [\s\S]*(case fullgraph=True[\s\S]*A graph holds tensors)
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / y.max() if bool(y.max() > 1) else y


solved = puzzles.attempt("graph", scaled)

# %% graph: hidden from the compiler -> ^not yet: [\s\S]*(case fullgraph=True)
def scaled(x, bias):
    hidden = torch.compiler.disable(add_relu)
    y = hidden(x, bias)
    return y / y.max().clamp(min=1)


solved = puzzles.attempt("graph", scaled)

# %% graph: .item() -> ^not yet: [\s\S]*(A graph holds tensors|A maximum can stay a tensor)
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / max(1.0, y.max().item())


solved = puzzles.attempt("graph", scaled)

# %% graph: each number by itself -> ^not yet: [\s\S]*(case a maximum above 1: at)
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / y.clamp(min=1)


solved = puzzles.attempt("graph", scaled)

# %% graph: through NumPy -> ^not yet: [\s\S]*(A graph holds tensors|A maximum can stay a tensor)
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / max(1.0, float(y.detach().cpu().numpy().max()))


solved = puzzles.attempt("graph", scaled)

# %% graph: where
def scaled(x, bias):
    y = add_relu(x, bias)
    return torch.where(y.max() > 1, y / y.max(), y)


solved = puzzles.attempt("graph", scaled)

# %% graph: the branch reads x -> ^not yet: [\s\S]*(case fullgraph=True[\s\S]*A graph holds tensors)
def scaled(x, bias):
    y = add_relu(x, bias)
    if x.max() > 1:
        y = y / y.max()
    return y


solved = puzzles.attempt("graph", scaled)

# %% graph: the larger of two tensors
def scaled(x, bias):
    y = add_relu(x, bias)
    return y / torch.maximum(y.max(), torch.ones_like(y.max()))


solved = puzzles.attempt("graph", scaled)

# %% gradient: zero lets the gradient pass -> ^not yet: [\s\S]*(the gradient of x: at[\s\S]*where out is above 0)
def setup_gate(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def backward_gate(ctx, grad):
    x, w, out = ctx.saved_tensors
    passed = grad * (out >= 0)
    return passed * w, (passed * x).sum(0)


solved = puzzles.attempt("gradient", (setup_gate, backward_gate))
