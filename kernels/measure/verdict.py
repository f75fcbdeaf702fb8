"""A prediction beside what was measured, in one line."""


def verdict(what: str, predicted: float | None, measured: float, unit: str, why: str) -> None:
    """Print "what: predicted, measured, ratio, why". None: nothing was predicted."""
    if predicted is None:
        print(f"{what}: no prediction; measured {measured:,.3f} {unit}. {why}")
        return
    ratio = f"{measured / predicted:.3g} ×" if predicted else "–"
    print(f"{what}: predicted {predicted:,.3f} {unit}, measured {measured:,.3f} {unit}: {ratio}. {why}")
