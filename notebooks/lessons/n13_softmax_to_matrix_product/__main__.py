"""python -m lessons.n13_softmax_to_matrix_product: softmax and a product of matrices, measured and recorded."""

if __name__ == "__main__":
    from data.cli import run

    run("lessons.n13_softmax_to_matrix_product.experiment")
