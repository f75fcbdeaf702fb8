"""What products.json has of the notebook's steps, printed."""

from __future__ import annotations

from lessons.shared.records import NO_RECORD, Record

PRODUCTS = Record("products")


def show_counted() -> None:
    """A line a step: GB that ncu counted from the L2 to the SMs, over the step's time; how busy both were."""
    try:
        rows = PRODUCTS.rows("step").dropna(subset="to_sms")
    except (LookupError, KeyError):
        print(f"counted by ncu: {NO_RECORD}")
        return
    about = PRODUCTS.table().attrs
    print(f"RECORDED on {about['GPU']}, {about['date']}: what the L2 sent to the SMs and how busy both were, by ncu")
    for _, row in rows.iterrows():
        rate = row["to_sms"] / row["us_p50"] / 1e6
        print(f"{row['name']:13} {row['to_sms'] / 1e9:5.1f} GB  {rate:5.1f} TB/s of {row['us_p50']:6.1f} µs"
              f"  L2 {row['l2_percent']:3.0f} %  SMs {row['sm_percent']:3.0f} %")
