"""Another table of ids in an exported model that is being called: `Exported.reload`, in Python and in run_exported."""

import errno
import os
import re
import shutil
import subprocess
import threading

import pytest
import torch
from exported_models import CARDINALITIES, trained

from data.cli import UserError
from kernels import IdTable
from model.export import sample
from model.serving import exported as exported_module
from model.serving.exported import Exported
from model.serving.folders import new_file, new_folder
from model.serving.manifest import CONSTANTS, MANIFEST, ExportError, File, Manifest
from model.serving.served import Served
from model.serving.table import Table, write_table

NEW = 10**12  # the first id that the trained model does not know


def own_table():
    return IdTable(Served(trained()).known)


def grown(count=5000):
    """The model's own table, and new ids of feature 3: `count` that share the trained rows, and as many without."""
    table = own_table()
    rows = torch.arange(count) % CARDINALITIES[3] + 1
    table.insert(NEW + torch.arange(count), torch.full((count,), 3), rows)
    table.insert(NEW + count + torch.arange(count), torch.full((count,), 3), rows + 1000)
    return table


def inputs_and_answers(pooling="none", batch=64):
    """(inputs of new ids, the answers of the own table, those of the grown one)."""
    served = Served(trained(), pooling)
    counts, *ids = sample(served, batch, 0)
    new, known, unknown = (indices.clone() for indices in [ids[0]] * 3)
    place = slice(None) if pooling == "none" else slice(int(ids[1][3 * batch]), None)
    index = (slice(None), 3) if pooling == "none" else place
    count = len(new[index])
    numbers = torch.arange(count)
    new[index], unknown[index], known[index] = NEW + numbers, -1, served.known[3][numbers % CARDINALITIES[3]]
    return [counts, new, *ids[1:]], served(counts, unknown, *ids[1:]), served(counts, known, *ids[1:])


@pytest.fixture
def tables(tmp_path):
    write_table(tmp_path / "own", own_table())
    write_table(tmp_path / "grown", grown())
    return tmp_path


def test_a_folder_without_room_is_told_in_one_line(tmp_path):
    """Python names every file of a copied folder."""

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, target)

    (tmp_path / "made").mkdir()
    for name in "ab":
        (tmp_path / "made" / name).write_text("")
    message = rf"^{tmp_path}/out: cannot be written: {os.strerror(errno.ENOSPC)}$"
    with pytest.raises(UserError, match=message), new_folder(tmp_path / "out") as folder:
        shutil.copytree(tmp_path / "made", folder / "made", copy_function=full)
    assert [*tmp_path.iterdir()] == [tmp_path / "made"]


def test_a_file_that_another_process_has_written_meanwhile_is_left_alone(tmp_path):
    out = tmp_path / "model.onnx"

    def write(folder):
        for file in (folder / out.name, folder / "model.onnx.data", out):
            file.write_text(str(file))

    with pytest.raises(UserError, match=r"model\.onnx: is there already"), new_file(out) as folder:
        write(folder)
    assert [path.read_text() for path in tmp_path.iterdir()] == [str(out)]


def test_a_table_is_what_was_written(tables):
    table = Table(tables / "grown")
    for tensor, want in zip(table.constants.values(), grown().storage(), strict=True):
        assert torch.equal(tensor, want)


def test_a_folder_that_is_there_is_left_alone(tables):
    with pytest.raises(UserError, match="own: is there already"):
        write_table(tables / "own", own_table())


def test_a_table_that_is_not_whole(tables):
    path = tables / "own" / CONSTANTS / "slots"
    whole = path.read_bytes()
    for content, why in ((whole[:-1], "bytes, and the manifest says"), (whole[:-1] + b"x", "its bytes are not those")):
        path.write_bytes(content)
        with pytest.raises(ExportError, match=f"slots: .*{why}"):
            Table(tables / "own")
    path.unlink()
    with pytest.raises(ExportError, match="slots: cannot be read"):
        Table(tables / "own")
    with pytest.raises(ExportError, match=r"nowhere.*: cannot be read"):
        Table(tables / "nowhere")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("seeds", "seed", "not a table of ids: it has tags, slots, bucket_offsets, seed"),
        ("tags\tuint8\t", "tags\tuint8\t1\t", "bucket_offsets, tags and slots are not of one table"),
    ],
)
def test_a_table_that_is_none(tables, old, new, why):
    path = tables / "own" / MANIFEST
    path.write_text(path.read_text().replace(old, new))
    (tables / "own" / CONSTANTS / "seed").write_bytes((tables / "own" / CONSTANTS / "seeds").read_bytes())
    with pytest.raises(ExportError, match=why):
        Table(tables / "own")


def test_bucket_offsets_that_lead_outside(tables):
    path = tables / "own" / CONSTANTS / "bucket_offsets"
    offsets = torch.from_file(str(path), size=5, dtype=torch.int64).clone()
    for place, value in ((0, 1), (2, -1), (4, int(offsets[4]) + 1)):
        wrong = offsets.clone()
        wrong[place] = value
        wrong.numpy().tofile(path)
        text = (tables / "own" / MANIFEST).read_text()
        sha256 = File.of(tables / "own", path).sha256
        (tables / "own" / MANIFEST).write_text(re.sub(r"(bucket_offsets\t40\t)\w+", rf"\g<1>{sha256}", text))
        with pytest.raises(ExportError, match="bucket_offsets, tags and slots are not of one table"):
            Table(tables / "own")


@pytest.mark.slow
class TestReload:
    def test_new_ids_have_rows_then(self, exported_folder, tables):
        exported = Exported(exported_folder)
        inputs, before, after = inputs_and_answers(exported_folder.name)
        assert not torch.equal(before, after)
        for table, want in (("grown", after), ("own", before), ("grown", after)):
            exported.reload(Table(tables / table))
            assert torch.equal(exported(*inputs), want)

    def test_a_table_of_other_features(self, exported_folder, tables):
        exported = Exported(exported_folder)
        inputs, before, _ = inputs_and_answers(exported_folder.name)
        write_table(tables / "five", IdTable([*Served(trained()).known, torch.arange(3)]))
        with pytest.raises(ExportError, match=r"for other features than the model's: bucket_offsets is .* \[6\]"):
            exported.reload(Table(tables / "five"))
        with pytest.raises(ExportError, match="not a table of ids"):
            exported.reload(Table(exported_folder))
        with pytest.raises(ExportError, match="own: not a model: its manifest has no inputs"):
            Exported(tables / "own")
        assert torch.equal(exported(*inputs), before)

    def test_a_model_whose_ids_are_in_no_table(self, tables):
        constants = [constant for constant in Manifest.read(tables / "own").constants if constant.name != "tags"]
        with pytest.raises(ExportError, match="the model has no tags: its ids are not in a table"):
            Table(tables / "own").check(constants)

    def test_each_call_has_one_table(self, exported_folder, tables):
        exported = Exported(exported_folder)
        inputs, before, after = inputs_and_answers(exported_folder.name)
        own, other = Table(tables / "own"), Table(tables / "grown")
        outcomes, ends = [], threading.Event()

        def call():
            while not ends.is_set():
                answer = exported(*inputs)
                outcomes.append((torch.equal(answer, before), torch.equal(answer, after)))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for table, want in ((other, after), (own, before)) * 20:
            exported.reload(table)
            outcomes.append((torch.equal(exported(*inputs), want), None))
        ends.set()
        for thread in threads:
            thread.join()
        assert {*outcomes} == {(True, False), (False, True), (True, None)}

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_a_reload_makes_no_other_runner(self, exported_folder, tables, monkeypatch):
        calls = []
        own = exported_module.runner_of
        monkeypatch.setattr(exported_module, "runner_of", lambda *arguments: calls.append(arguments) or own(*arguments))
        exported, (inputs, _, after) = Exported(exported_folder), inputs_and_answers()
        for _ in range(3):
            exported.reload(Table(tables / "grown"))
            assert torch.equal(exported(*inputs), after)
        assert len(calls) == 1

    def test_what_was_loaded_is_unmapped(self, exported_folder, tables):
        def mapped():
            with open("/proc/self/maps") as lines:
                return sum(str(exported_folder) in line or str(tables) in line for line in lines)

        def load():
            exported = Exported(exported_folder)
            exported.reload(table)
            return mapped()

        table, before = Table(tables / "grown"), mapped()
        loaded = load()
        assert loaded >= before + len(table.constants)
        assert {load() for _ in range(5)} == {loaded}


@pytest.mark.slow
class TestInCpp:
    def run(self, programs, *arguments):
        command = [programs / "run_exported", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    def test_new_ids_have_rows_then(self, serving_programs, exported_folder, tables):
        inputs, before, after = inputs_and_answers(exported_folder.name)
        torch.save(inputs, tables / "inputs.pt")
        for table, want in (("own", before), ("grown", after)):
            done = self.run(
                serving_programs, exported_folder, "--inputs", tables / "inputs.pt", "--reload", tables / table
            )
            probabilities = torch.tensor([float(line) for line in done.stdout.split()])
            assert torch.equal(probabilities, want), done.stderr

    def test_how_long_it_takes(self, serving_programs, exported_folder, tables):
        done = self.run(serving_programs, exported_folder, "--bench", "--threads", 2, "--reload", tables / "grown")
        assert len(re.findall(r"2 threads: 100 reloads in \d+ calls: p50 [\d.]+ ms, p99 [\d.]+", done.stdout)) == 6

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_a_reload_that_fails_under_calls(self, serving_programs, exported_folder, tables):
        folder = shutil.copytree(exported_folder, tables / "copied")
        command = ["stdbuf", "-oL", serving_programs / "run_exported", folder, "--bench", "--threads", "2"]
        command += ["--reload", tables / "grown"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert "100 reloads" in process.stdout.readline()
            shutil.rmtree(folder / "package")  # which each reload loads again
            _, told = process.communicate(timeout=300)
        assert (process.returncode, "run_exported: " in told) == (2, True), told

    def test_tables_that_it_does_not_take(self, serving_programs, exported_folder, tables):
        write_table(tables / "five", IdTable([*Served(trained()).known, torch.arange(3)]))
        path = tables / "own" / CONSTANTS / "slots"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        for table, why in (
            (tables / "five", "for other features than the model's: bucket_offsets is Long [6]"),
            (tables / "own", "its bytes are not those that were exported"),
            (tables / "nowhere", "cannot be read"),
            (exported_folder, "not a table of ids"),
        ):
            done = self.run(serving_programs, exported_folder, "--reload", table)
            assert (done.returncode, why in done.stderr) == (2, True), done.stderr
        done = self.run(serving_programs, tables / "grown")
        assert (done.returncode, "not a model" in done.stderr) == (2, True), done.stderr
