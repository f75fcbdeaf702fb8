"""What products.json has of the notebook's steps, printed."""

from __future__ import annotations

from lessons.shared.records import NO_RECORD, Record

PRODUCTS = Record("products")


def show_counted() -> None:
    """A line a step, by ncu's count: GB that the SMs got, what the L2 read for it, and how busy the SMs were."""
    try:
        rows = PRODUCTS.rows("step").dropna(subset="to_sms")
    except (LookupError, KeyError):
        print(f"counted by ncu: {NO_RECORD}")
        return
    about = PRODUCTS.table().attrs
    print(f"RECORDED on {about['GPU']}, {about['date']}, counted by ncu")
    for _, row in rows.iterrows():
        read = row["from_l2"]
        print(f"{row['name']:16}  SMs got {row['to_sms'] / 1e9:.1f} GB, L2 read {read / 1e9:.1f} GB in "
              f"{row['us_p50']:.1f} µs: {read / row['us_p50'] / 1e6:.1f} TB/s; SMs {row['sm_percent']:.0f} % busy")
