"""What gpu.json has of latencies, strides, copies, the L2, products and counters; None where there is no record yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n06_how_a_gpu_runs_a_kernel.experiment import LAUNCHED, Sizes
from lessons.shared.ncu import launches
from lessons.shared.occupancy import programs_an_sm
from lessons.shared.records import ADD_RELU, BF16, FLOAT32, GPU, NO_RECORD, TF32, Record, gb_per_s, yardstick

if TYPE_CHECKING:
    import pandas

ROOFS = {"fp32": FLOAT32 / 1e12, "tf32": TF32 / 1e12, "bf16": BF16 / 1e12}  # TFLOP/s, by the datasheet


def here(value: float | None) -> str:
    """What was measured on this machine, in words; "" without a GPU."""
    return "" if value is None else f"Here: {_shown(value)}."


def show(
    what: str, theirs: float | None, mine: float | None = None, unit: str = "GB/s", instead: str = NO_RECORD
) -> None:
    """Print a line: what was recorded, and what was measured here. instead: where nothing was recorded."""
    text = instead if theirs is None else f"recorded {_shown(theirs):>5} {unit}"
    print(f"{what:52} {text}  {here(mine)}".rstrip())


def show_copy(block: int, programs: int, mine: float | None) -> None:
    """As show, of copy_kernel."""
    of = "a program for each tile" if not programs else f"{programs} program{'s' * (programs > 1)} on each SM"
    part, labels = _copy(block, programs)
    resident = {"beside": {"programs": 16}, "called": "with 16 programs"}  # as many as an SM has room for
    instead = GPU.elsewhere(part, lambda row: f"{_shown(gb_per_s(row))} GB/s", **resident, **labels)
    show(f"BLOCK {block}, {of}", copy_gb(block, programs), mine, instead=instead)


def show_reread(size: int, order: str, mine: float | None) -> None:
    """As show, in TB/s, of a buffer that is read again and again; mine: GB/s."""
    part, labels = _reread(size, order)
    in_step = {"beside": {"order": "in step"}, "called": "in step"}
    instead = GPU.elsewhere(part, lambda row: f"{_shown(gb_per_s(row) / 1e3)} TB/s", **in_step, **labels)
    show(f"{size >> 20} MiB, {order}", reread_tb(size, order), mine and mine / 1e3, "TB/s", instead)


def show_idle(mine: float | None) -> None:
    """As show, of programs that copy nothing: how many begin per ns."""
    programs = max(Sizes().idle)
    instead = GPU.elsewhere("idle", lambda row: f"{_shown(_per_ns(row))} begin per ns", programs=programs)
    show(f"{programs:,} programs that copy nothing", idle_per_ns(), mine, "begin per ns", instead)


def _shown(value: float) -> str:
    return f"{value:,.{int(value < 100)}f}"


def latency_ns(level: str) -> float:
    """The ns of a read that hangs on the one before: level L1, L2 or HBM."""
    sizes = sorted(GPU.rows("latency")["size"])
    return GPU.one("latency", size=dict(zip(("L1", "L2", "HBM"), sizes, strict=True))[level])["ns_p50"]


def stride_gb(stride: int) -> float:
    """GB/s of what strided_kernel asked for."""
    return gb_per_s(GPU.one("stride", stride=stride))


def copy_gb(block: int, programs: int) -> float | None:
    """GB/s of copy_kernel, read and written: programs an SM, 0 for one a tile."""
    part, labels = _copy(block, programs)
    try:
        return gb_per_s(GPU.one(part, **labels))
    except LookupError:
        return None


def _copy(block: int, programs: int) -> tuple[str, dict]:
    """The part and the labels of that row."""
    return "flight" if programs in Sizes().programs else "queued", {"block": block, "programs": programs}


def idle_per_ns() -> float | None:
    """How many programs begin per ns if they copy nothing."""
    try:
        rows = GPU.rows("idle")
    except LookupError:
        return None
    return _per_ns(rows.loc[rows["programs"].idxmax()])


def _per_ns(row: pandas.Series) -> float:
    return row["programs"] / (1e3 * row["us_p50"])


def reread_tb(size: int, order: str) -> float | None:
    """TB/s of a buffer that is read again and again, past the L1: "in step", or each program in its "own" order."""
    part, labels = _reread(size, order)
    try:
        return gb_per_s(GPU.one(part, **labels)) / 1e3
    except LookupError:
        return None


def _reread(size: int, order: str) -> tuple[str, dict]:
    """The part and the labels of that row."""
    if order == "in step":
        return "reread", {"size": size, "cache": "L2"}
    return "order", {"size": size, "order": order}


def resident(row: pandas.Series) -> int:
    """Programs that an SM holds at a time, of a row of the part flight."""
    room = programs_an_sm(int(row["threads"]), int(row["registers"]))
    return min(int(row["programs"]) or room, room)


def in_flight(row: pandas.Series) -> float:
    """KB that an SM's programs read at a time."""
    return resident(row) * 4 * row["block"] / 1e3


def product(name: str, precision: str = "bf16") -> pandas.Series:
    """The product of this name, of the larger batch where there are two."""
    rows = GPU.rows("product", name=name, precision=precision)
    return rows.loc[rows["rows"].idxmax()]


def pointwise() -> pandas.Series:
    """add_relu in float32, our Triton kernel's: an addition and a comparison an element."""
    return ADD_RELU.one("bandwidth", implementation="triton", form="functional", dtype="float32", rows=65536)


def bound(row: pandas.Series) -> float:
    """TFLOP/s that the roofline allows a product."""
    return min(row["flops"] / row["bytes"] * yardstick(), ROOFS[row["precision"]])


def ridge(precision: str) -> float:
    """FLOPs per byte from which on a kernel is compute-bound."""
    return ROOFS[precision] / yardstick()


def ncu(launched: str, metric: str, record: Record = GPU) -> float | None:
    """What ncu counted of the launch of this name; bytes in GB."""
    matches = launches(record.head("ncu", "lines"))[LAUNCHED.index(launched) :][:1]
    value = matches[0][1].get(metric) if matches else None
    return value / 1e9 if value is not None and "bytes" in metric else value


def show_ncu(metrics: dict[str, str], *launched: str) -> None:
    """Print a line a metric, a column a launch: of the H200, or else of another GPU that has all, with its name."""
    whole = (gpu for gpu in (GPU, *GPU._others()) if all(ncu(name, m, gpu) for name in launched for m in metrics))
    record = next(whole, GPU)
    print(f"{'' if record is GPU else record.head('GPU'):28}" + "".join(f"{name:>16}" for name in launched))
    for metric, meaning in metrics.items():
        cells = [ncu(name, metric, record) for name in launched]
        print(f"{meaning:28}" + "".join(f"{NO_RECORD if x is None else f'{x:,.{2 * (x < 1000)}f}':>16}" for x in cells))
