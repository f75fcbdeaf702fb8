"""What the figures must show: the targets that an op's bench.py lists as TARGETS, and their verdicts.

A peer may be measured as it comes and as somebody sets it who knows it: "torch.compile", and "torch.compile, padded".
What is compared with it is compared with the fastest of these. SETTINGS are the words for that. Other words behind a
name say that it does other work ("cuda, sorted before"), and then it is no variant.

Never slower means: of two that ran by turns, the median is at most 3 % above the other's, and the spreads, 20th to 80th
percentile, touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .cells import ANOTHER_LENGTH, OURS, Labels, Row, label

COPIES_AGREE = 1.05  # the fastest copy of a run over its slowest; beyond that it is no yardstick
NEVER_SLOWER = 1.03
PEERS = ("eager", "jit", "torch.compile")
# What may stand behind a peer's name: an option of Inductor's, or how its rows are filled up. It does the same work.
SETTINGS = ("combo_kernels", "32 look-ups a kernel", "padded", "padded in the call")


@dataclass(frozen=True)
class Verdict:
    """part: met or missed, with the figure; misses: what is beyond the limit, a line each."""

    part: str
    met: bool
    figure: str
    misses: list[str] = field(default_factory=list)

    def lines(self, op: str) -> list[str]:
        state = "met" if self.met else "MISSED"
        return [f"{op} {self.part}: {state}: {self.figure}", *(f"    {miss}" for miss in self.misses)]


def name(row: Row) -> str:
    """implementation, form and labels."""
    return f"{row.implementation} {row.form} {label(row)}"


def by_cell(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """{implementation: row} of each form and labels."""
    cells: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault((row.form, *row.labels.items()), {})[row.implementation] = row
    return list(cells.values())


def best_set(cell: Mapping[str, Row], name: str) -> Row | None:
    """The fastest row of the implementation's variants, the best-set peer; one without a time if none has one, None if
    there is none."""
    rows = [row for who, row in cell.items() if is_variant(who, name)]
    return min(rows, key=lambda row: _times(row)[1], default=None)


def is_variant(implementation: str, name: str) -> bool:
    """Whether it is `name`, or "name, …" with nothing but SETTINGS behind: "torch.compile, padded" say."""
    first, *settings = implementation.split(", ")
    return implementation == name or (first == name and all(setting in SETTINGS for setting in settings))


def steady(copies: Mapping) -> bool:
    """Whether the copies of a run agree, so that they are a yardstick; copies: a record's copy_tb_per_s."""
    bandwidths = copies.get("all") or [copies["before"], copies["after"]]
    return max(bandwidths) <= COPIES_AGREE * min(bandwidths)


def ratio(ours: float | None, peer: float | None) -> float:
    """ours / peer; Inf where one was not measured."""
    return ours / peer if ours and peer and math.isfinite(ours) and math.isfinite(peer) else math.inf


def _of_each(worst: Mapping[str, list[float]]) -> str:
    figures = ((who, max(values, default=math.inf), len(values)) for who, values in worst.items())
    return ", ".join(f"{who} at worst {most:.3f} of {count}" for who, most, count in figures)


# ------------------------------------------------------------------------------------------------------------------
# The targets: each has a part, and judges the rows of that part.


@dataclass(frozen=True)
class CopyShare:
    """Ours reach so many percent of the bandwidth of a copy, which at_least(labels) gives."""

    at_least: Callable[[Labels], float]
    part: str = "bandwidth"
    who: tuple[str, ...] = OURS

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        if not steady(copies):
            return Verdict(self.part, False, "the run's copies differ by more than 5 %: there is no yardstick")
        worst, misses = {backend: [] for backend in self.who}, []
        for row in (row for row in rows if row.implementation in self.who):
            share = 1e-4 * row.bytes / row.us_p50 / copies["limit"] if row.us_p50 else 0.0
            limit = self.at_least(row.labels)
            worst[row.implementation].append(share)
            if share < limit:
                misses.append(f"{name(row)}: {share:.1f} %, {limit:.1f} asked")
        least = (f"{who} at least {min(shares, default=0.0):.1f} % in {len(shares)}" for who, shares in worst.items())
        figure = f"{', '.join(least)} cells, of the copy's bandwidth"
        return Verdict(self.part, all(worst.values()) and not misses, figure, misses)


@dataclass(frozen=True)
class BytesPlus:
    """Ours take at most the time that a copy takes for their bytes, and so many µs more."""

    microseconds: float
    part: str = "bandwidth"
    who: tuple[str, ...] = OURS

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        if not steady(copies):
            return Verdict(self.part, False, "the run's copies differ by more than 5 %: there is no yardstick")
        worst, misses = {backend: [] for backend in self.who}, []
        for row in (row for row in rows if row.implementation in self.who):
            bytes_us = 1e-6 * row.bytes / copies["limit"]
            worst[row.implementation].append(more := row.us_p50 - bytes_us if row.us_p50 else math.inf)
            if more > self.microseconds:
                misses.append(f"{name(row)}: {bytes_us + more:.2f} µs, its bytes {bytes_us:.2f}")
        most = (f"{who} at most {max(times, default=math.inf):.2f} µs in {len(times)}" for who, times in worst.items())
        figure = f"{', '.join(most)} cells, beyond the bytes' time; limit {self.microseconds} µs"
        return Verdict(self.part, all(worst.values()) and not misses, figure, misses)


@dataclass(frozen=True)
class NearTheFastest:
    """Each of ours within 1.05 (1.15 where the fastest peer takes less than 10 µs) of the fastest peer in 95 % of the
    cells, and in each other cell the better of ours within 1.25."""

    part: str = "grid"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        within, misses, worst = dict.fromkeys(OURS, 0), [], 0.0
        cells = by_cell(rows)
        for cell in cells:
            times = {who: row.us_p50 or math.inf for who, row in cell.items()}
            fastest = min(PEERS, key=lambda peer: times.get(peer, math.inf))
            peer = times.get(fastest, math.inf)
            ratios = {who: times.get(who, math.inf) / peer if peer < math.inf else math.inf for who in OURS}
            limit = 1.15 if peer < 10 else 1.05
            for who in OURS:
                within[who] += ratios[who] <= limit
            if max(ratios.values()) > limit:
                better = min(ratios.values())
                worst = max(worst, better)
                text = ", ".join(f"{who} {factor:.3f}" for who, factor in ratios.items())
                what = label(next(iter(cell.values())))
                misses.append(f"{what}: {text}; limit {limit}, {fastest} {peer:.2f} µs; better {better:.3f}")
        shares = {who: count / len(cells) for who, count in within.items()}
        figure = "; ".join(f"{who} within the limit in {share:.1%}" for who, share in shares.items())
        figure += f" of {len(cells)} cells (95 % asked), elsewhere the better within {worst:.3f} (1.25 asked)"
        return Verdict(self.part, min(shares.values()) >= 0.95 and worst <= 1.25, figure, misses)


@dataclass(frozen=True)
class AtMost:
    """The time of ours at most `limit` × that of another implementation, as it is set best: the GPU's, or where it was
    not measured a call's that is waited for."""

    limit: float
    than: str = "torch.compile"
    part: str = "backward"
    who: tuple[str, ...] = OURS

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        worst, misses = {who: [] for who in self.who}, []
        for cell in by_cell(rows):
            for who in self.who:
                if who in cell:
                    peer = best_set(cell, self.than)
                    worst[who].append(factor := ratio(_times(cell[who])[1], peer and _times(peer)[1]))
                    if factor > self.limit:
                        misses.append(f"{name(cell[who])}: {factor:.3f}{_of(peer, self.than)}")
        met = all(worst.values()) and not misses
        return Verdict(self.part, met, f"{_of_each(worst)} × {_set(rows, self.than)}; limit {self.limit}", misses)


@dataclass(frozen=True)
class NeverSlower:
    """Implementations are at most 3 % slower than the best setting of the peer in every cell that has both, and the
    spreads touch. A call's time as its user sees it counts in cells that wait, the GPU's in others."""

    than: str = "torch.compile"
    who: tuple[str, ...] = OURS
    part: str = "bandwidth"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        worst, misses = {who: [] for who in self.who}, []
        for cell in by_cell(rows):
            for who in self.who:
                best = best_set(cell, self.than)
                if who in cell and best:
                    (low, ours, _), (_, peer, high) = (_times(row) for row in (cell[who], best))
                    worst[who].append(factor := ratio(ours, peer))
                    if factor > NEVER_SLOWER or low > high:
                        beyond = "" if factor > NEVER_SLOWER else f", and {low:.4g} µs is beyond {high:.4g}"
                        misses.append(f"{name(cell[who])}: {factor:.3f}{_of(best, self.than)}{beyond}")
        met = all(worst.values()) and not misses
        than = _set(rows, self.than)
        figure = f"{_of_each(worst)} × {than}; never slower: within {NEVER_SLOWER}, and the spreads touch"
        return Verdict(self.part, met, figure, misses)


def _of(peer: Row | None, name: str) -> str:
    """Says which peer it is, if not the one of this name."""
    return f" of {peer.implementation}" if peer and peer.implementation != name else ""


def _set(rows: Iterable[Row], name: str) -> str:
    """The peer's name, and that it is also measured in other ways, if it is."""
    ways = {row.implementation for row in rows if is_variant(row.implementation, name)} - {name}
    return f"{name}, as it is set best" if ways else name


def _times(row: Row) -> tuple[float, float, float]:
    """p20, p50 and p80: of the GPU time, or where that was not measured of a call that is waited for; else Inf."""
    times = (row.us_p20, row.us_p50, row.us_p80) if row.us_p50 else (row.call_us_low, row.call_us, row.call_us_high)
    return tuple(math.inf if value is None else value for value in times)


@dataclass(frozen=True)
class CallCost:
    """A call of each of ours at most `limit` × PyTorch's own smallest call of the same form; with a gradient recorded
    at most `of_eager` × eager's same formula."""

    limit: float = 1.1
    of_eager: float = 0.6
    part: str = "calls"
    who: tuple[str, ...] = OURS

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        figures, misses = [], []
        for cell in by_cell(rows):
            form = next(iter(cell.values())).form
            base = next((row for row in cell.values() if row.match == "baseline"), None) or cell.get("eager")
            limit = self.limit if base and base.match == "baseline" else self.of_eager
            ratios = {
                who: ratio(row.call_us, base.call_us if base else None) for who, row in cell.items() if row is not base
            }
            for who in self.who:
                if ratios.get(who, math.inf) > limit:
                    misses.append(f"{who} {form}: {ratios.get(who, math.inf):.2f}, {limit} asked")
            text = ", ".join(f"{who} {factor:.2f}" for who, factor in ratios.items())
            figures.append(f"{form}: {text} × {_spread(base)}; limit {limit}" if base else f"{form}: no baseline")
        return Verdict(self.part, bool(figures) and not misses, " | ".join(figures), misses)


def _spread(row: Row) -> str:
    if not row.call_us:
        return f"{row.implementation} (not measured)"
    between = f", {row.call_us_low:.2f} to {row.call_us_high:.2f}" if row.call_us_low else ""
    return f"{row.implementation} ({row.call_us:.2f} µs{between})"


@dataclass(frozen=True)
class CallWithin:
    """A call of each of ours from Python takes at most so many µs."""

    microseconds: float
    part: str = "calls"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        costs = {name(row): row.call_us or math.inf for row in rows if row.implementation in OURS}
        misses = [f"{which}: {us:.1f} µs" for which, us in costs.items() if us > self.microseconds]
        met = set(OURS) <= {row.implementation for row in rows} and not misses
        figure = ", ".join(f"{which} {us:.1f} µs" for which, us in costs.items())
        return Verdict(self.part, met, f"{figure}; limit {self.microseconds} µs", misses)


@dataclass(frozen=True)
class FirstCallWithin:
    """A process's first call, beyond importing torch and loading the core, with what it needs on disk, or, of a part
    that compiles, without."""

    milliseconds: float = 50.0
    part: str = "first call"
    who: tuple[str, ...] = OURS

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        cells, figures, misses = by_cell(rows), [], []
        for cell in cells:
            where = f"{label(next(iter(cell.values())))}: " if len(cells) > 1 else ""
            times = {who: cell[who].call_us if who in cell else None for who in {**dict.fromkeys(self.who), **cell}}
            texts = {who: f"{1e-3 * us:.1f} ms" if us else "not measured" for who, us in times.items()}
            figures.append(where + ", ".join(f"{who} {words}" for who, words in texts.items()))
            beyond = [who for who, us in times.items() if not us or 1e-3 * us > self.milliseconds]
            misses += [f"{where}{who}: {texts[who]}" for who in beyond]
        figure = f"{'; '.join(figures)}; limit {self.milliseconds:.0f} ms"
        return Verdict(self.part, bool(cells) and not misses, figure, misses)


@dataclass(frozen=True)
class AnyLength:
    """A call of ours with another N than any before takes at most `limit` × one with the same N each time."""

    limit: float = 1.2
    who: tuple[str, ...] = OURS
    part: str = "lengths"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        worst, misses = {}, []
        for cell in by_cell(rows):
            for who in self.who:
                one, another = (cell.get(variant) for variant in (who, who + ANOTHER_LENGTH))
                factor = ratio(another and another.call_us, one and one.call_us)
                worst[who] = max(factor, worst.get(who, 0.0))
                if factor > self.limit:
                    misses.append(f"{who}: {factor:.2f}, {self.limit} asked")
        figure = ", ".join(f"{who} {factor:.2f}" for who, factor in worst.items())
        return Verdict(self.part, bool(worst) and not misses, f"{figure} × one N's; limit {self.limit}", misses)


# What every op must show of its calls.
CALLS = (CallCost(), FirstCallWithin(), NeverSlower("eager", ("auto",), "auto"))


def summary(record: Mapping, targets: Iterable) -> list[str]:
    """A verdict for each target, and each row that failed. A --quick run gets only what it measured, peers too."""
    rows = [Row.of(flat) for flat in record["rows"]]
    lines = []
    for target in targets:
        part_rows = [row for row in rows if row.part == target.part]
        peer = getattr(target, "than", None)
        if record["quick"] and peer and not any(is_variant(row.implementation, peer) for row in part_rows):
            continue
        if part_rows:
            lines += target.judge(part_rows, record["copy_tb_per_s"]).lines(record["op"])
        elif not record["quick"]:
            lines += Verdict(target.part, False, "not measured").lines(record["op"])
    failed = (row for row in rows if row.failed)
    return lines + [f"FAILED: {row.part}: {name(row)}: {row.match.removeprefix('FAILED: ')}" for row in failed]
