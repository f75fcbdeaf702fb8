"""The notebook's layer and its training, as its answers have them: a test compares the texts."""

import torch
from torch import nn
from torch.nn import functional as F


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
