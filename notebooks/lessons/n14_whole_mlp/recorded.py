"""What others recorded, printed: one kernel for a whole MLP and its best peer, by `python -m kernels.measure bench
fused_mlp`; SMs that share a tile, by notebook 23."""

from __future__ import annotations

from lessons.shared.records import Record, apart

FUSED = "triton", "cuda"
# Of notebook 23's measurements: the part, its format, and who shares.
SHARED = (("clusters", "tf32", "eight SMs a tile"), ("pairs", "tf32", "two SMs a tile"),
          ("pairs, bfloat16", "bfloat16", "two SMs a tile"))  # fmt: skip
NAMES = {"13-512-256-64-16": "bottom", "367-512-256-1": "top"}


def show_best() -> None:
    """A line for each MLP, format and number of rows: the faster of our kernels, the fastest of all others, and how
    many times as fast ours is, unless that is within the spread."""
    record = Record("fused_mlp")
    print(f"RECORDED on {record.head('GPU')}, {record.head('date')}: µs of the faster of our kernels, and of its peer")
    table = record.rows().dropna(subset="us_p50")
    table = table[table["widths"].isin(NAMES) & (table["part"] != "training") & (table["implementation"] != "auto")]
    for (widths, dtype, precision), cells in table.groupby(["widths", "dtype", "precision"], sort=False):
        form = dtype if dtype != "float32" or precision == "ieee" else precision
        for rows, ways in cells.groupby("rows"):
            ours = ways["implementation"].isin(FUSED)
            best, peer = (ways[which].sort_values("us_p50").iloc[0] for which in (ours, ~ours))
            ratio = f"{peer['us_p50'] / best['us_p50']:.2f} ×" if apart(best, peer) else "no difference"
            print(f"{NAMES[widths]:6} {form:8} {rows:6,} rows  {best['us_p50']:5.1f} {best['implementation']:6}  "
                  f"{peer['us_p50']:5.1f} {peer['implementation']:21}  {ratio}")


def show_shared() -> None:
    """A line for each format and number of rows: the best of tiles on an SM each, and of tiles that SMs share."""
    record = Record("lecture_23")
    print(f"RECORDED on {record.head('GPU')}, {record.head('date')}, by notebook 23: µs of a whole DLRM")
    for part, form, sharing in SHARED:
        for rows, ways in record.rows(part).groupby("size"):
            alone = ways["name"].str.endswith("rows a tile")
            own, shared = (ways[which].sort_values("us_p50").iloc[0] for which in (alone, ~alone))
            ratio = f"{own['us_p50'] / shared['us_p50']:.2f} ×" if apart(own, shared) else "no difference"
            print(f"{form:8} {int(rows):6,} rows  a tile an SM {own['us_p50']:5.1f}  {sharing:16} "
                  f"{shared['us_p50']:5.1f}  {ratio}")
