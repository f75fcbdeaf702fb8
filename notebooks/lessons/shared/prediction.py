"""A prediction beside what was measured, or counted, in one line."""

import re


def verdict(what: str, predicted: float | None, measured: float, unit: str, why: str, how: str = "measured") -> None:
    """Print "what: predicted, measured, ratio. Why". predicted None: nothing was. how: counted, where no clock ran."""
    if predicted is None:
        print(f"{what}: no prediction, {how} {_counted(measured, unit)}. {why}".rstrip())
        return
    ratio = f"{_shown(measured / predicted)} ×" if predicted else "no ratio"
    print(f"{what}: predicted {_counted(predicted, unit)}, {how} {_counted(measured, unit)}: {ratio}. {why}".rstrip())


def _counted(value: float, unit: str) -> str:
    """With its unit: "2 launches", "1 launch", "1 ms"; "times" is no plural, and nearly once is "1.00 times"."""
    number = _shown(value)
    if number == "1" and value != 1 and unit.startswith("times"):
        number = "1.00"
    if number == "1" and unit != "times":
        unit = re.sub(r"^([a-z]{3,}?)(?:(?<=ch)e)?s$", r"\1", unit)
    return f"{number} {unit}".rstrip()


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
