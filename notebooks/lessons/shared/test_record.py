"""What stands in the place of a row that the H200's record lacks."""

import pytest

from kernels.measure import records
from lessons.shared.records import NO_RECORD, Record, Unsaved


@pytest.fixture
def others(monkeypatch):
    """others(rows): another GPU's record of the name "made", which has these."""

    def give(*rows):
        other = Unsaved("made", [{"match": "ok", **row} for row in rows])
        monkeypatch.setattr(Record, "_others", lambda self: [other])
        return Record("made")

    return give


def test_another_gpus_time_stands_beside_eagers(others):
    of = {"part": "op", "shape": "even"}
    record = others({**of, "name": "ours", "us_p50": 61.25}, {**of, "name": "eager", "us_p50": 210.0})
    message = record.elsewhere("op", name="ours", shape="even")
    assert message == "not recorded on an H200; on an X1 61.2 µs, eager there 210.0 µs"
    assert record.elsewhere("op", name="eager", shape="even") == "not recorded on an H200; on an X1 210.0 µs"
    message = record.elsewhere("op", lambda row: f"{row['us_p50'] / 1e3:.2f} ms", name="ours", shape="even")
    assert message == "not recorded on an H200; on an X1 0.06 ms, eager there 0.21 ms"
    beside = record.elsewhere("op", beside={"name": "eager"}, called="as it was", name="ours", shape="even")
    assert beside == "not recorded on an H200; on an X1 61.2 µs, as it was there 210.0 µs"
    assert record.elsewhere("op", name="ours", shape="odd") == NO_RECORD


def test_a_row_without_eager_or_that_failed(others):
    record = others(
        {"part": "tiles", "variant": "16×16", "us_p50": 3.0},
        {"part": "tiles", "variant": "8×8", "us_p50": 3.0, "match": "FAILED: off"},
    )
    assert record.elsewhere("tiles", variant="16×16") == "not recorded on an H200; on an X1 3.0 µs"
    assert record.elsewhere("tiles", variant="8×8") == NO_RECORD


def test_a_part_is_taken_whole_from_one_record(others):
    record = others({"part": "sweep", "us_p50": 3.0}, {"part": "mix", "us_p50": 1.0, "match": "FAILED: x"})
    own = Unsaved("made", [{"match": "ok", "part": "sweep"}])
    assert own.with_part("sweep") is own
    assert record.with_part("sweep").head("GPU") == "NVIDIA X1"
    with pytest.raises(LookupError, match=r"made\.json: no row of mix, on any GPU"):
        record.with_part("mix")


def test_the_folders_of_other_gpus_are_asked():
    for record in Record("pointwise")._others():
        assert record.gpu != records.README_GPU
        assert len(record.table())
    assert Record("none such")._others() == []
