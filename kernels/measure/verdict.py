"""A prediction beside what was measured, or counted, in one line."""


def verdict(what: str, predicted: float | None, found: float, unit: str, why: str, how: str = "measured") -> None:
    """Print "what: predicted, measured, ratio. Why". predicted None: nothing was. how: counted, where no clock ran."""
    if predicted is None:
        print(f"{what}: no prediction, {how} {_shown(found)} {unit}. {why}")
        return
    ratio = f"{_shown(found / predicted)} ×" if predicted else "no ratio"
    print(f"{what}: predicted {_shown(predicted)} {unit}, {how} {_shown(found)} {unit}: {ratio}. {why}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
