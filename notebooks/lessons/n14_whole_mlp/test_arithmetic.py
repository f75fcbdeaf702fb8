"""The bytes of eager's steps are those that eager.py counts."""

from lessons.n14_whole_mlp import arithmetic


def test_bytes_of_the_steps():
    rows, vectors, columns = 3, 5, 8
    elements, width = vectors * columns, columns + 10
    numbers = {"cat 1": 2 * elements, "T Tᵀ": elements + vectors**2, "the pairs": 2 * 10, "cat 2": 2 * width}
    assert arithmetic.moved(rows, vectors - 1, columns) == {step: 4 * rows * count for step, count in numbers.items()}
