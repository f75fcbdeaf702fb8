"""The puzzles of 12_lora.ipynb, and attempt(), which judges an answer.

    lora_layer    layer_puzzle.py      the layer: what it gives, what is trained, and the gradients
    fine_tune     training_puzzle.py   a model's layers replaced, and trained
    lora_kernel   kernel_puzzles.py    the layer's epilogue in Triton
"""

from __future__ import annotations

from collections.abc import Callable

from lessons.n12_lora import kernel_puzzles, lora_kernel, program
from lessons.n12_lora.layer_puzzle import check_layer
from lessons.n12_lora.training_puzzle import check_fine_tune
from lessons.shared.puzzle import Judge, Own

PUZZLES = kernel_puzzles.PUZZLES | {"lora_layer": Own(check_layer), "fine_tune": Own(check_fine_tune)}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt
OURS = {
    "lora_layer": program.LoRALinear,
    "fine_tune": (program.add_lora, program.fine_tune),
    "lora_kernel": lora_kernel.lora_kernel,
}


def passed(name: str) -> Callable | tuple:
    """The reader's answer, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name, OURS[name])
