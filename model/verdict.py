"""A prediction held against what came out, in one line."""


def verdict(what: str, predicted: float, measured: float, why: str) -> None:
    """Print "what: predicted, measured, ratio; why"."""
    ratio = f"{measured / predicted:.3g} ×" if predicted else "no ratio to 0"
    print(f"{what}: predicted {predicted:,.4g}, measured {measured:,.4g}, {ratio} the prediction; {why}")
