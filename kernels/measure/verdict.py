"""A prediction beside what was measured, in one line."""


def verdict(what: str, predicted: float | None, measured: float, unit: str, why: str) -> None:
    """Print "what: predicted, measured, ratio. Why". None: nothing was predicted."""
    if predicted is None:
        print(f"{what}: no prediction, measured {_shown(measured)} {unit}. {why}")
        return
    ratio = f"{measured / predicted:.3g} ×" if predicted else "no ratio"
    print(f"{what}: predicted {_shown(predicted)} {unit}, measured {_shown(measured)} {unit}: {ratio}. {why}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
