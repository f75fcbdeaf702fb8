"""The bytes of eager's steps are those that eager.py counts."""

from kernels.ops.dot_interaction import lesson


def test_bytes_of_the_steps():
    rows, vectors, columns = 3, 5, 8
    taken, width = vectors * columns, columns + 10
    numbers = {"cat 1": 2 * taken, "T Tᵀ": taken + vectors**2, "the pairs": 2 * 10, "cat 2": 2 * width}
    assert lesson.moved(rows, vectors - 1, columns) == {step: 4 * rows * count for step, count in numbers.items()}
