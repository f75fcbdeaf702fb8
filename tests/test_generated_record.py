"""model.generated: the recorder runs through in small, and rejects a wrong result."""

import pytest
import torch

from kernels.measure import records
from model.generated import __main__ as command
from model.generated import record

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def found():
    recorder = record.Recorder(CPU, (4,))
    with torch.no_grad():
        recorder.size(4, ("literal", "columns open"))
    return recorder


def test_everything_is_measured_in_small(found, tmp_path):
    assert {row["part"] for row in found.rows} == {"candidate", "scalar", "eager", "copy"}
    assert {row["match"] for row in found.rows} == {"ok"}
    assert all(row["us_p50"] > 0 for row in found.rows)
    assert "ks0" in found.sources["columns open"]
    assert "ks0" not in found.sources["literal"]
    assert any("LDG" in line for line in found.code["sass"])
    assert "ld.global" in found.code["ptx"]
    head = {"op": record.NAME, "GPU": "a GPU", "sources": found.sources, **found.code, "rows": found.rows}
    records.save(head, tmp_path)
    assert len(records.recorded(record.NAME, records.slug("a GPU"), tmp_path)) == len(found.rows)


def test_what_is_known_of_the_sizes_shows_in_the_code(found):
    kept = {row["variant"]: row for row in found.rows if row["part"] == "candidate" and row["kept"]}
    scalar = next(row for row in found.rows if row["part"] == "scalar" and row["kept"])
    assert max(kept["literal"]["accesses"]["ld"]) > max(scalar["accesses"]["ld"]) == 4
    assert kept["columns open"]["instructions"] > 2 * kept["literal"]["instructions"]


def test_a_wrong_result_has_no_time(monkeypatch):
    monkeypatch.setattr(record, "launch", lambda *arguments, **named: lambda: None)
    monkeypatch.setattr(record, "sass", lambda cubin: None)
    recorder = record.Recorder(CPU, (4,))
    with torch.no_grad():
        recorder.size(4, ("literal",))
    rows = [row for row in recorder.rows if row["part"] in ("candidate", "scalar")]
    assert {row["match"] for row in rows} == {"FAILED: the result is wrong"}
    assert not any("us_p50" in row for row in rows)


def test_the_command_asks_for_a_gpu_and_saves_nothing_less(monkeypatch):
    monkeypatch.setattr(command.runtime, "device", lambda: CPU)
    for arguments in ([], ["--save", "--device", "cpu"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(arguments)
