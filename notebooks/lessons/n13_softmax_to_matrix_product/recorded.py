"""What products.json has of the notebook's steps, printed."""

from __future__ import annotations

from lessons.shared.records import NO_RECORD, Record

PRODUCTS = Record("products")


def show_counted() -> None:
    """A line a step, by ncu's count: GB that the SMs got, what came from memory and what the L2 read, and how busy the
    SMs were, at ncu's fixed clock unless it was told to leave the clock alone."""
    try:
        rows = PRODUCTS.rows("step").dropna(subset="to_sms")
    except (LookupError, KeyError):
        print(f"counted by ncu: {NO_RECORD}")
        return
    about = PRODUCTS.table().attrs
    clock = "the timed" if "--clock-control none" in about.get("ncu", {}).get("command", "") else "a fixed, lower"
    print(f"RECORDED on {about['GPU']}, {about['date']}, counted by ncu, at {clock} clock")
    for _, row in rows.iterrows():
        got, memory, read = (row[name] / 1e9 for name in ("to_sms", "from_memory", "from_l2"))
        print(f"{row['name']:16}  SMs got {got:.1f} GB, memory gave {memory:.1f}; L2 read {read:.1f} GB in "
              f"{row['us_p50']:.1f} µs: {1e3 * read / row['us_p50']:.1f} TB/s; SMs {row['sm_percent']:.0f} % busy")
