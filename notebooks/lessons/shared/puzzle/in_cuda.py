"""Puzzles whose answer is a CUDA kernel's text: what a run of it came to, in words, with a hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.check.host.programs import FORWARD, SIGNATURE, Outcome, Sparse

HINTS = {
    "misaligned": "A float4 must begin at a multiple of 16 bytes.",
    "host": "This function runs on the CPU. Only the kernel may touch the memory that the pointers point to.",
    "race": "Between the write of one thread and the read of another, all threads must meet in __syncthreads().",
    "unset": "Is every element that is read written first? Do all threads meet in __syncthreads() before one reads?",
    "unmet": "Every thread of the block must reach each __syncthreads(), so it may stand under no condition.",
    "barrier": "Every thread of the block must reach each __syncthreads(), so it may stand under no condition.",
    "endless": "Does each loop come to its end?",
    "array": "Each index of an array must be 0 or more and below its size, the first as well as the second.",
    "shared": "Each index of the shared array must stay below its size, the first as well as the second.",
    "much": "nvcc refuses __shared__ arrays of more than 48 KB. How many elements does a block need at once?",
    "stream": "PyTorch orders its work by the current stream: <<<grid, block, 0, c10::cuda::getCurrentCUDAStream()>>>.",
    "unchecked": "A launch returns no error. C10_CUDA_KERNEL_LAUNCH_CHECK() after it raises what went wrong.",
    "raised": "What may x and y be? The strides of a view are no error: contiguous() copies where it must.",
    "allocates": "A tensor from torch::empty_like(x) has the shape of x.",
    "ended": "Look for a division by 0, an index that has lost its upper bits, or an endless recursion.",
}

# Names of CUDA's that the host build does not have → what to think of them.
ALONE = {
    r"atomic\w+": "Here g++ compiles the text, without atomics. The puzzle needs none.",
    r"__(?:shfl|ballot|any|all|match|reduce|activemask|syncwarp)\w*": "Here g++ compiles the text, without the "
    "functions with which a warp's lanes exchange values or meet. The puzzle needs none: __syncthreads() is there.",
    r"cudaDeviceSynchronize|cudaStreamSynchronize": "A launch does not wait for its kernel, and what is around it need "
    "not either: PyTorch orders its work by the stream.",
    r"cuda[A-Z]\w*": "Here g++ compiles the text, without CUDA's runtime. The puzzle needs the launch alone.",
    r"__\w+": "Here g++ compiles the text, with CUDA's fast functions of float, such as __expf and __frcp_rn, and no "
    "other name that begins so. What would it be in C?",
}
UNKNOWN = re.compile(r"['‘](\w+)['’] (?:was not declared|is not a member|has not been declared|does not name a type)")


class Wrong(AssertionError):
    """What the program did, in words, with its own hint."""


def pointers(source: str) -> list[tuple[str, int]]:
    """(name, bytes of what it points to) of each of launch()'s pointers; of forward() the tensors, and those that it
    allocates."""
    if forward := FORWARD.search(source):
        names = [re.search(r"(\w+)\s*$", parameter)[1] for parameter in forward[1].split(",") if "Tensor" in parameter]
        return [(name, 4) for name in (*names, *(f"tensor {number} of forward()'s own" for number in range(1, 5)))]
    parameters = [parameter for parameter in SIGNATURE.search(source)[1].split(",") if "*" in parameter]
    return [(re.search(r"(\w+)\s*$", parameter)[1], 8 if "long long" in parameter else 4) for parameter in parameters]


def not_on_host(error: str) -> str:
    """A hint for the compiler's error, where a name is CUDA's and not the host build's; "" elsewhere."""
    if "conflicting specifiers" in error:  # of `extern __shared__`, which is static here
        return "Here g++ compiles the text, without dynamic shared memory. Give the __shared__ array its size."
    name = UNKNOWN.search(error)
    return next((hint for names, hint in ALONE.items() if name and re.fullmatch(names, name[1])), "")


def explain(
    outcome: Outcome, source: str, sizes: Sequence[int], hint: Callable[[str], str], launch: str
) -> str:
    """A sentence and a hint for an outcome that is not ok.

    sizes: of the buffers, in numbers of 4 bytes. hint: (the pointer's name) → what to think of where it is read or
    written outside; "" for no pointer. launch: the hint for a grid that does not start.
    """
    named, parts, status = pointers(source), outcome.text.split("|"), outcome.status
    function = "forward()" if FORWARD.search(source) else "launch()"

    def place() -> str:
        name, size = named[int(parts[0])]
        return f"{name}[{int(parts[1]) * 4 // size:,}]"

    if status == "outside":
        number = int(parts[0])
        name, size = named[number]
        text = f"{parts[2]} {parts[3]} {place()}, and {name} has {sizes[number] * 4 // size:,} elements"
        return f"{text}\nHint: {hint(name)}"
    text = {
        "array": lambda: (
            f"{parts[0]} has the index {int(parts[1]):,} of an array {parts[2]}, in line {parts[3]} of the text"
        ),
        "misaligned": lambda: f"{parts[2]} touches {parts[3]} bytes at once, starting at {place()}",
        "host": lambda: f"{function} itself touches {place()}",
        "beside": lambda: f"the memory beside {named[int(parts[0])][0]} was changed",
        "barrier": lambda: f"the block cannot go on: {outcome.text}",
        "launch": lambda: f"the launch fails: {outcome.text}",
        "nowhere": lambda: f"{outcome.text} at an address that belongs to no pointer of {function}",
        "much": lambda: f"its __shared__ arrays have {int(outcome.text):,} bytes, and a block can have 49,152",
        "endless": lambda: f"it does not end: stopped after {outcome.text}",
        "ended": lambda: f"the program ended with {outcome.text}",
        "stream": lambda: "the kernel is launched on the default stream",
        "unchecked": lambda: "forward() does not check whether the launch succeeded",
        "raised": lambda: f"TORCH_CHECK({outcome.text}) fails, but all inputs of this test are valid",
        "allocates": lambda: f"forward() allocates {int(outcome.text):,} elements, but out has as many as x",
    }.get(status, lambda: outcome.text)()
    return f"{text}\nHint: {launch if status == 'launch' else HINTS.get(status) or hint('')}"


def ends_of(values: Tensor, rows: int) -> Sparse:
    """A buffer of so many rows, of which only the first and the last are there: the halves of these, [2 n, …]."""
    flat = values.contiguous().numpy().view(np.float32).reshape(-1)
    half, numbers = flat.size // 2, rows * (flat.size // len(values))
    return Sparse(numbers, {0: flat[:half].copy(), numbers - half: flat[half:].copy()})


def hold_ends(what: str, outcome: Outcome, expected: Tensor, explained: Callable[[], str], hint: str) -> None:
    """A run of which only the ends of the last buffer are there, and are to be these, [2 n, …]. Wrong: it went outside
    of a buffer, which explained() says, or wrote another number. Places that were not found are no fault."""
    if outcome.status == "outside":
        raise Wrong(f"{what}: {explained().partition(chr(10))[0]}\nHint: {hint}")
    if outcome.status == "ok":
        got = torch.from_numpy(np.concatenate(outcome.buffers[-1])).view_as(expected)
        wrong = ~got.isnan() & ~torch.isclose(got, expected, rtol=1e-4, atol=1e-4)
        if wrong.any():
            raise Wrong(f"{what}: expected {expected[wrong][0]:.7g}, got {got[wrong][0]:.7g}\nHint: {hint}")
