"""Answers to the puzzles of 12_lora.ipynb, a section a puzzle."""

# %% lora_layer
class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.A = nn.Parameter(torch.empty(linear.in_features, rank, **like))
        nn.init.uniform_(self.A, -(linear.in_features**-0.5), linear.in_features**-0.5)
        self.B = nn.Parameter(torch.zeros(rank, linear.out_features, **like))
        self.multiplier = alpha / rank

    def forward(self, x):  # [..., in] -> [..., out]
        return self.linear(x) + self.multiplier * ((x @ self.A) @ self.B)


solved = puzzles.attempt("lora_layer", LoRALinear)
LoRALinear = puzzles.passed("lora_layer")

# %% fine_tune
def add_lora(model, rank, alpha):  # each nn.Linear becomes a LoRALinear; only A and B are trained
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank, alpha))
    return model


def fine_tune(model, batches, lr):  # SGD on A and B -> the loss of each batch
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.SGD(trained, lr=lr), []
    for labels, dense, ids in batches:
        loss = F.binary_cross_entropy_with_logits(model(dense, ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


solved = puzzles.attempt("fine_tune", add_lora, fine_tune)
add_lora, fine_tune = puzzles.passed("fine_tune")

# %% lora_kernel
@triton.jit
def lora_kernel(
    linear, thin, B, bias, out, multiplier, rows, columns,
    RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    rank, inside = tl.arange(0, RANK), (row < rows) & (column < columns)
    thin_tile = tl.load(thin + row * RANK + rank[None, :], row < rows, other=0.0)
    B_tile = tl.load(B + rank[:, None] * columns + column, column < columns, other=0.0)
    y = tl.dot(thin_tile, B_tile, input_precision="ieee")
    z = tl.load(linear + row * columns + column, inside).to(tl.float32) + multiplier * y
    z += tl.load(bias + column, column < columns)
    tl.store(out + row * columns + column, tl.where(z <= 0, 0.0, z), inside)


solved = puzzles.attempt("lora_kernel", lora_kernel)
lora_kernel = puzzles.passed("lora_kernel")
