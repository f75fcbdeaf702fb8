"""python -m lessons.n13_softmax_to_matrix_product: the steps of a matrix product, counted by ncu and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n13_softmax_to_matrix_product.experiment")
