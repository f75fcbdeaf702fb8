"""What `python -m model.bench --write` writes: README.md's results, model/README.md's table, and the picture."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest

from kernels.measure import records
from kernels.measure.judge import NEVER_SLOWER
from model.bench import pages, step_picture
from model.bench.whole_model import readme_table

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results(tmp_path):
    """A copy of the H200's records of what is shown, which may be changed."""
    (tmp_path / "h200").mkdir()
    for name in (step_picture.RECORD, *pages.BUILT):
        shutil.copy(records.RESULTS / "h200" / f"{name}.json", tmp_path / "h200")
    return tmp_path


def change(results, name, **changes):
    """In the record's rows, what `implementation` names becomes faster or slower: {implementation: factor}."""
    path = results / "h200" / f"{name}.json"
    record = json.loads(path.read_text())
    for row in record["rows"]:
        for time in ("us_p50", "ms"):
            if row.get(time):
                row[time] *= changes.get(row["implementation"], 1)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("path", list(pages.pages()), ids=lambda path: path.relative_to(pages.ROOT).as_posix())
def test_it_is_what_the_records_say_now(path):
    text = pages.pages()[path]
    assert path.read_text() == text, "python -m model.bench --write"
    assert pages.pages()[path] == text


def test_write_changes_nothing_but_the_pages(tmp_path, monkeypatch):
    paths = {tmp_path / path.name: text for path, text in pages.pages().items()}
    monkeypatch.setattr(pages, "pages", lambda: paths)
    pages.write()
    assert {path: path.read_text() for path in tmp_path.iterdir()} == paths


def test_the_bars_are_to_scale_and_each_says_its_time():
    """The lengths beside the records' milliseconds, whatever the words."""
    root = ElementTree.fromstring(step_picture.svg())
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") in ("peer", "ours", "other")]
    rows = step_picture.step_rows()[1]
    fastest = min(row["ms"] for name, row in rows.items() if name.startswith("torch.compile"))
    plain = rows["torch.compile"]["ms"]
    compiled = plain if plain <= NEVER_SLOWER * fastest else fastest
    times = [rows["eager sparse"]["ms"], compiled, rows["fused"]["ms"], rows["fused graph"]["ms"]]
    times.append(step_picture.traced(step_picture.GRAPHED_PEER)["step_ms"])
    assert [bar.get("class") for bar in bars] == ["peer", "peer", "ours", "ours", "other"]
    assert {bar.get("x") for bar in bars} == {bars[0].get("x")}
    scale = float(bars[0].get("width")) / times[0]
    assert [float(bar.get("width")) for bar in bars] == pytest.approx([scale * ms for ms in times], abs=0.1)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if re.fullmatch(r"\d\.\d\d ms", text)] == [f"{ms:.2f} ms" for ms in times]
    one, two = (next(text for text in root.iter(f"{SVG}text") if text.text == tick) for tick in ("1", "2"))
    assert float(two.get("x")) - float(one.get("x")) == pytest.approx(scale, abs=0.2)


def test_what_is_drawn_together_ran_alike():
    """The profiled step has the tables and rows of the bars above the line; and all are one model on one GPU."""
    record, _ = step_picture.step_rows()
    profiled, graphed = map(step_picture.traced, (step_picture.PROFILED, step_picture.GRAPHED_PEER))
    ours = [step_picture.traced(name) for name in (step_picture.OURS_TRACED, step_picture.OURS_GRAPHED)]
    assert {run["GPU"] for run in (record, profiled, graphed, *ours)} == {"NVIDIA H200"}
    for run in (profiled, graphed, *ours):
        config = run["config"]["run"]
        assert (config["interaction"], config["batch_size"]) == step_picture.CELL[:2]
        assert config["preset"] == "main"
    assert {run["config"]["ids"] for run in ours} == {profiled["config"]["ids"]}
    assert {run["config"]["run"]["optimizer"] for run in (profiled, *ours)} == {"sgd"}
    assert profiled["config"]["ids"] == sum(step_picture.SyntheticConfig(step_picture.FULL).cardinalities)
    assert graphed["config"]["run"]["compile"] == "reduce-overhead"


def test_the_picture_follows_its_record(results):
    before, ms = step_picture.svg(results), step_picture.step_rows(results)[1]["fused graph"]["ms"]
    change(results, step_picture.RECORD, **{"fused graph": 2})
    after = step_picture.svg(results)
    assert f"{ms:.2f} ms" in before
    assert f"{ms:.2f} ms" not in after
    assert f"one CUDA graph: {2 * ms:.2f} ms." in step_picture.words(results)
    path = results / "h200" / f"{step_picture.RECORD}.json"
    path.write_text(path.read_text().replace('"match": "ok"', '"match": "FAILED: x"'))
    with pytest.raises(ValueError, match="no time of a step by fused, fused graph"):
        step_picture.svg(results)


def test_a_peer_that_failed_is_named_and_has_no_bar(results):
    """Nor does the page take its time from an older record."""
    path = results / "h200" / f"{step_picture.RECORD}.json"
    record = json.loads(path.read_text())
    for row in record["rows"]:
        if row["implementation"] == "eager sparse":
            row["match"] = "FAILED: x"
            for name in ("ms", "ms_low", "ms_high"):
                row.pop(name, None)
    path.write_text(json.dumps(record))
    assert "PyTorch, eager: – (FAILED);" in step_picture.words(results)
    assert ">– (FAILED)</text>" in step_picture.svg(results)
    table = readme_table(results=results)
    assert re.search(r"\n\| a training step, 2,048 rows, TF32 \| [\d.]+ \| – \| [\d,.]+ ", table)
    assert "FAILED, and so without a time: eager sparse (a training step of `outer`, 2,048 rows, TF32), eager" in table


def test_a_tie_is_no_result(results):
    """Nor is a kernel that loses, nor one whose record is another GPU's."""
    assert pages.table(results) == pages.table()
    lines = pages.table(results).splitlines()
    assert len(lines) == 2 + len(pages.BUILT)
    for line in lines[2:]:
        *times, ours = (float(number.replace(",", "")) for number in re.findall(r"\| \**([\d,]+\.\d)", line))
        assert ours < min(times)
    change(results, "dlrm", **{"torch.compile": 2.45 / 30})
    assert pages.table(results).splitlines() == lines[:-1]
    change(results, "dot_interaction", cuda=10, triton=10)
    assert pages.table(results).splitlines() == [*lines[:2], lines[3]]
    path = results / "h200" / "fused_mlp.json"
    record = json.loads(path.read_text())
    path.unlink()
    assert pages.table(results).splitlines() == lines[:2]
    records.save(record | {"GPU": "NVIDIA T4"}, results)
    assert pages.table(results).splitlines() == lines[:2]
