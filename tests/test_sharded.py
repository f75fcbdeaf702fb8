"""model.train on several ranks, with gloo: what one process trains, from checkpoints of any number of ranks, and how a
run ends that fails on one of them."""

from __future__ import annotations

import itertools
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import sharded_runs
import torch
import torch.distributed.checkpoint as dcp
from train_runs import assert_same, table

from data.cli import UserError
from data.criteo import LABEL, CriteoBatches
from data.dataset import write_dataset
from data.preprocess import preprocess
from data.schema import read_schema
from model import preset, single_file
from model.checkpoints import load_checkpoint, load_whole
from model.predict import predict
from model.sharding import beats as beats_module
from model.sharding import pieces as of_pieces
from model.sharding import ranks as sharding_ranks
from model.sharding.batches import ShardedBatches, joined, rows_of
from model.sharding.checkpoints import _Part, named, read_pieces
from model.sharding.pieces import Sharding, pieces, place
from model.sharding.ranks import Lost, Ranks, SharedSignals, of_rank
from model.sharding.run import shards_of
from model.sharding.sparse_arch import PiecedTables
from model.train import main, train

OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "table_optimizer": "sgd", "learning_rate": 0.1, "table_learning_rate": 0.5},
    "adagrad": {"optimizer": "adagrad", "table_optimizer": "adagrad"},
    "adam": {"optimizer": "adam", "table_optimizer": "adagrad"},
    "rowwise": {"optimizer": "sgd", "table_optimizer": "rowwise_adagrad"},
}
LAYOUTS = {"whole": {}, "rows": {"piece_rows": 7}, "columns": {"columns": 2}, "both": {"piece_rows": 9, "columns": 4}}


def write_one_id(out: Path) -> None:
    write_dataset([lambda: table(700)], out)  # 600, 50 and 50 rows


def write_bags(out: Path) -> None:
    """A single id, and two lists, of which some are empty."""
    draw = np.random.default_rng(0)
    lines = ["click,seen,shop,tags"]
    for _ in range(700):
        seen, tags = (draw.integers(30, size=draw.integers(0, 6)) for _ in range(2))
        lines.append(f"{int(seen.sum() > 30)},{' '.join(map(str, seen))},{draw.integers(9)},{' '.join(map(str, tags))}")
    form = "[columns]\nlabel = 'click'\ninteger = ['shop']\n"
    form += "".join(f"[lists.{name}]\nkind = 'integer'\nseparator = ' '\n" for name in ("seen", "tags"))
    (out.parent / "bags.toml").write_text(form)
    (out.parent / "bags.csv").write_text("\n".join(lines))
    preprocess([out.parent / "bags.csv"], out, schema=read_schema(out.parent / "bags.toml"))


# Every pair of settings is somewhere among these; test_all_of_them has the product.
CASES = [
    ("one id", "sgd", "whole", 2), ("one id", "sgd", "columns", 3), ("one id", "adagrad", "rows", 2),
    ("one id", "adam", "whole", 3), ("one id", "adam", "columns", 2), ("one id", "adam", "both", 3),
    ("one id", "rowwise", "rows", 3), ("one id", "adagrad", "both", 4), ("one id", "adam", "rows", 1),
    ("bags", "adam", "whole", 3), ("bags", "adagrad", "rows", 2), ("bags", "sgd", "both", 3),
    ("bags", "adam", "columns", 1),
]
MODELS = {"one id": {}, "bags": {"hash": "sorted", "cardinalities": []}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Where each run of the tests that follow went: forked all together from one process."""
    return made(tmp_path_factory.mktemp("sharded"), CASES)


def made(folder: Path, cases: list[tuple]) -> Path:
    """Have these runs made, each beginning with the parameters that one process has trained, and that process go on."""
    write_one_id(folder / "one id")
    write_bags(folder / "bags")
    asked = []

    def ask(*name, world: int, data: str, optimizer: str, **options) -> None:
        settings = {**OPTIMIZERS[optimizer], "model": MODELS[data], **options.pop("settings", {})}
        begin = {} if options.get("resume") else {"init_from": f"{folder / data}-begin/best.pt"}
        out = folder / "-".join(map(str, name))
        asked.append({"world": world, "out": str(options.pop("out", out)), "data": str(folder / data),
                      "settings": settings, "sharding": {"data_shards": 1}, **begin, **options})

    for data in MODELS:
        ask("begin", world=0, data=data, optimizer="sgd", out=f"{folder / data}-begin", init_from=None)
        for optimizer in {optimizer for of, optimizer, *_ in cases if of == data}:
            ask("one", data, optimizer, world=0, data=data, optimizer=optimizer)
    for data, optimizer, layout, world in cases:
        ask(data, optimizer, layout, world, world=world, data=data, optimizer=optimizer,
            sharding={"data_shards": 1, **LAYOUTS[layout]})
    statuses = sharded_runs.run_all(asked, folder)
    for run, status in zip(asked, statuses, strict=True):
        assert not any(status), (run, Path(f"{run['out']}.err").read_text())
    return folder


@pytest.mark.parametrize(("data", "optimizer", "layout", "world"), CASES)
def test_losses_are_those_of_one_process(runs, data, optimizer, layout, world):
    check_losses(runs, data, optimizer, layout, world)


@pytest.mark.slow
def test_all_of_them(tmp_path):
    cases = [*itertools.product(MODELS, ["sgd", "adagrad", "adam"], LAYOUTS, [1, 2, 3])]
    made(tmp_path, cases)
    for case in cases:
        check_losses(tmp_path, *case)


def check_losses(runs: Path, data: str, optimizer: str, layout: str, world: int) -> None:
    expected = torch.load(runs / f"one-{data}-{optimizer}.losses")
    actual = torch.load(runs / f"{data}-{optimizer}-{layout}-{world}.losses")
    assert len(expected) == 50
    # A bag whose rows are in several pieces is summed in another order.
    is_exact = world == 1 and not (data == "bags" and "piece_rows" in LAYOUTS[layout])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0 if is_exact else 1e-6)


# Checkpoints, and what ends a run


# Which rank of how many, before its how many-th of what, and which checkpoint is the last one then.
KILLS = [
    ("kill", 3, 1, 25, "step", "step-000020"), ("kill-pieces", 2, 1, 2, "pieces", "step-000010"),
    ("kill-save", 2, 0, 2, "save", "step-000010"), ("kill-evaluation", 2, 1, 1, "evaluation", "step-000040"),
]


@pytest.fixture(scope="module")
def ends(tmp_path_factory) -> tuple[Path, dict[str, list[int]]]:
    """Runs with a checkpoint every ten steps, of which something ends most; where, and the statuses of their ranks."""
    folder = tmp_path_factory.mktemp("ends")
    write_one_id(folder / "data")
    write_one_id(folder / "spoiled")
    (path,) = (folder / "spoiled" / "train").glob("*.parquet")
    rows = pq.read_table(path)
    labels = rows[LABEL].to_numpy().copy()
    labels[300] = 2
    pq.write_table(rows.set_column(0, LABEL, [labels]), path)
    runs = {}

    def ask(name: str, world: int, *, data: str = "data", settings: dict | None = None, **options) -> None:
        settings = {**OPTIMIZERS["adam"], "checkpoint_every": 10, **(settings or {})}
        sharding = {"data_shards": 1, "piece_rows": 7, **options.pop("sharding", {})}
        runs[name] = {"world": world, "out": str(folder / name), "data": str(folder / data), "settings": settings,
                      "sharding": sharding, **options}

    def on(rank: int, what: str, at: int, before: str = "step") -> dict:
        return {"rank": rank, "what": what, "at": at, "before": before}

    ask("begin", 0, settings=OPTIMIZERS["sgd"])
    begin = {"init_from": str(folder / "begin" / "best.pt")}
    ask("one", 0, **begin)
    ask("two", 2, happens=on(1, "terminate", 25), **begin)
    ask("two-three", 3, copy_of=str(folder / "two"), resume=True)
    ask("two-one", 1, copy_of=str(folder / "two"), resume=True)
    for name, world, *where in KILLS:
        ask(name, world, happens=on(where[0], "kill", *where[1:3]), **begin)
        environment = {"TORCHELASTIC_RESTART_COUNT": "1"}  # torchrun starts the same command
        ask(f"{name}-again", world, copy_of=str(folder / name), environment=environment, **begin)
    ask("hang", 3, happens=on(2, "hang", 15), timeout=2)
    ask("nan", 2, happens=on(1, "nan", 15))
    ask("full", 2, happens=on(1, "full", 15))
    ask("bad", 2, data="spoiled", sharding={"data_shards": 2})
    ask("bf16", 2, sharding={"exchange": "bf16"}, **begin)
    ask("few", 4, sharding={"piece_rows": 0})
    ask("again", 2, copy_of=str(folder / "two"))
    ask("other", 2, copy_of=str(folder / "two"), resume=True, sharding={"piece_rows": 8})
    command = ["--preset", "mini", "--kernels", "fused", "--epochs", "1", "--data", folder / "data", "--device", "cpu"]
    command += ["--checkpoints", folder / "command", "--logs", folder / "command"]
    ask("command", 2, command=[str(word) for word in command], environment={"TORCHELASTIC_RUN_ID": "a test"})
    statuses = sharded_runs.run_all(runs.values(), folder)
    return folder, dict(zip(runs, statuses, strict=True))


def said(folder: Path, name: str) -> str:
    return (folder / f"{name}.err").read_text()


def losses(folder: Path, name: str) -> torch.Tensor:
    return torch.load(folder / f"{name}.losses")


def test_what_two_ranks_saved_three_and_one_go_on_with(ends):
    folder, statuses = ends
    assert statuses["two"] == [143, 143]  # all stop at the step in which one of them got SIGTERM
    assert named(folder / "two" / "last").name == "step-000025"
    assert statuses["two-three"] == [0, 0, 0]
    assert statuses["two-one"] == [0]
    for name in ("two-three", "two-one"):
        torch.testing.assert_close(losses(folder, name), losses(folder, "one"), rtol=0, atol=1e-6)
        folders = [path.name for path in (folder / name).glob("step-*")]
        assert folders == ["step-000050"]


def test_the_single_file_is_what_one_process_trains(ends, tmp_path):
    folder, _ = ends
    single_file.main([str(folder / "two-three"), "--out", str(tmp_path / "model.pt")])
    single_file.main([str(folder / "two-three" / "step-000050"), "--out", str(tmp_path / "same.pt")])
    with pytest.raises(UserError, match=r"last: expected a run.s folder, or .*, got a file; name .*two-three"):
        single_file.main([str(folder / "two-three" / "last"), "--out", str(tmp_path / "none.pt")])
    actual, expected = load_checkpoint(tmp_path / "model.pt"), load_checkpoint(folder / "one" / "best.pt")
    torch.testing.assert_close(actual["parameters"], expected["parameters"], rtol=0, atol=1e-5)
    assert_same(load_checkpoint(tmp_path / "same.pt"), actual)
    with pytest.raises(UserError, match="best: is a part of the checkpoints themselves"):
        single_file.main([str(folder / "two-three"), "--out", str(folder / "two-three" / "best")])
    for path in (tmp_path / "model.pt", folder / "one" / "best.pt"):
        predict(path, folder / "data" / "test", path.with_suffix(".parquet"))
    predicted = tmp_path / "model.parquet", folder / "one" / "best.parquet"
    actual, expected = (pq.read_table(path)["probability"].to_numpy() for path in predicted)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    config = sharded_runs.config_of({"batch_size": 12, **OPTIMIZERS["adam"]})
    with pytest.raises(UserError, match="is of a run under torchrun, and --resume goes on with it there alone"):
        train(config, folder / "data", device="cpu", logs=tmp_path / "logs", resume=tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"two-three/last.pt: is of a run under torchrun"):
        train(config, folder / "data", device="cpu", logs=tmp_path, checkpoints=folder / "two-three", resume=True)
    with pytest.raises(UserError, match=r"one/last.pt: a single file, from which no ranks go on"):
        named(folder / "one" / "last")


@pytest.mark.parametrize(("name", "world", "rank", "at", "what", "last"), KILLS)
def test_a_rank_that_is_killed_ends_all_and_a_restart_goes_on(ends, name, world, rank, at, what, last):
    folder, statuses = ends
    assert statuses[name] == [-9 if one == rank else 2 for one in range(world)]
    message = rf"model.train: rank {rank} \(.*, process \d+\) answers no more, .*: killed, or stopped\n"
    assert re.fullmatch(message, said(folder, name)), said(folder, name)
    assert named(folder / name / "last").name == last
    assert statuses[f"{name}-again"] == [0] * world
    torch.testing.assert_close(losses(folder, f"{name}-again"), losses(folder, "one"), rtol=0, atol=1e-6)
    assert [path.name for path in (folder / f"{name}-again").glob("step-*")] == ["step-000050"]


@pytest.mark.parametrize(
    ("name", "messages", "last"),
    [
        ("hang", r"rank 2 \(.*\) hangs, between steps 14 and 15: no answer within --timeout", "step-000010"),
        ("nan", r"training has diverged: the loss is nan in step 15; .*, of step 10, is kept", "step-000010"),
        ("full", r".*the checkpoint cannot be written, what was there is kept: rank 1: File too large", "step-000010"),
        ("bad", r"rank 1: .*parquet: row 300, column labels: expected 0 or 1, found 2", None),
        ("other", r"/.*last: piece_rows: checkpoint has 7, this run 8", "step-000025"),
        ("few", "torchrun: 4 ranks, and the tables are 3 pieces; use --columns or --piece-rows", None),
        ("again", r"/.*last is of an earlier run: --resume .*", "step-000025"),
    ],
)
def test_what_is_wrong_on_one_rank_or_on_all_ends_all_with_one_message(ends, name, messages, last):
    folder, statuses = ends
    assert set(statuses[name]) == {2}
    assert re.fullmatch(f"model.train: {messages}\n", said(folder, name)), said(folder, name)
    assert last is None or named(folder / name / "last").name == last
    left = [path.name for path in (folder / name).glob("step-*")]
    assert left == ([last] if last else [])


def test_a_damaged_number_is_noticed(ends, tmp_path):
    folder, _ = ends
    shutil.copytree(folder / "two-three" / "step-000050", tmp_path / "step")
    single_file.main([str(tmp_path / "step"), "--out", str(tmp_path / "model.pt")])
    numbers = load_checkpoint(tmp_path / "model.pt")["parameters"]["sparse_arch.tables.weight"][0].numpy().tobytes()
    (of_rank,) = (path for path in (tmp_path / "step").glob("*.distcp") if numbers in path.read_bytes())
    of_rank.write_bytes(of_rank.read_bytes().replace(numbers, bytes([numbers[0] ^ 1]) + numbers[1:]))
    with pytest.raises(UserError, match=rf"a damaged one: .*wrong checksum of 0.*weight in {of_rank.name}"):
        single_file.main([str(tmp_path / "step"), "--out", str(tmp_path / "model.pt")])


@pytest.mark.parametrize("name", [".", "last", "step-000050/run.pt"])
def test_what_is_no_single_file_says_how_to_make_one(ends, name):
    folder, _ = ends
    with pytest.raises(UserError, match=r"one is made by: python -m model.single_file .* --out FILE"):
        load_whole(folder / "two-three" / name)
    with pytest.raises(UserError, match="under torchrun --resume goes on from a checkpoint's folder"):
        shards_of(folder / "command" / "best.pt")


def test_bf16_on_the_wire_is_near(ends):
    folder, _ = ends
    difference = (losses(folder, "bf16") - losses(folder, "one")).abs().max()
    assert 1e-6 < difference < 1e-2, difference


def test_the_command_speaks_once_and_leaves_one_file(ends):
    folder, statuses = ends
    assert statuses["command"] == [0, 0], said(folder, "command")
    printed = (folder / "command.0.out").read_text()
    assert re.fullmatch(r"validation: rows 50, .*\ntest: rows 50, .*\n", printed), printed
    assert (folder / "command.1.out").read_text() == ""
    assert said(folder, "command").count("peak memory") == 1
    assert "tables.weight" in " ".join(load_checkpoint(folder / "command" / "best.pt")["parameters"])


# The parts


def test_pieces_are_drawn_alike_wherever_they_lie(monkeypatch):
    monkeypatch.setattr(of_pieces, "DRAWN", 12)  # so that a piece is drawn by several threads
    rows, sharding = [11, 21, 31], Sharding(piece_rows=8, columns=2)
    whole = [torch.full((count, 4), float("nan")) for count in rows]
    for ranks in (1, 3):
        placed = place(pieces(rows, sharding), ranks)
        held = [sum(piece.rows for piece in own) for own in placed]
        assert max(held) - min(held) <= 8
        for own in placed:
            tables = PiecedTables(own, 2, rows, seed=5)
            for piece, part in zip(own, tables.split(tables.weight), strict=True):
                of_table = piece.of(whole[piece.table], sharding.columns)
                assert ranks == 1 or torch.equal(of_table, part)
                of_table.copy_(part)
    for table_, count in zip(whole, rows, strict=True):
        assert table_.abs().max() <= count**-0.5
        assert len(table_.unique()) == table_.numel()
    other = PiecedTables(placed[0], 2, rows, seed=6)
    assert not torch.equal(other.split(other.weight)[0], placed[0][0].of(whole[placed[0][0].table], 2))


@pytest.mark.parametrize(("shards", "world", "batch"), [(1, 3, 12), (3, 2, 12), (2, 4, 48), (4, 4, 12)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_steps_are_the_same_for_any_number_of_ranks(tmp_path, shards, world, batch, shuffle):
    pq.write_table(table(100), tmp_path / "rows.parquet", row_group_size=13)
    how = {"shuffle": shuffle, "seed": 3}
    of_shards = [CriteoBatches(tmp_path, batch // shards, rank=s, world_size=shards, **how) for s in range(shards)]
    steps = [
        joined([part for part in parts if part is not None], 26) for parts in itertools.zip_longest(*of_shards)
    ]
    ranks = [ShardedBatches(tmp_path, batch, shards=shards, rank=r, world=world, **how) for r in range(world)]
    assert {one.num_batches for one in ranks} == {len(steps)}
    for first in (0, 1):
        for expected, *of_ranks in zip(steps[first:], *(one.batches_from(first) for one in ranks), strict=True):
            assert [len(own.batch[0]) for own in of_ranks] == of_ranks[0].counts == of_ranks[-1].counts
            actual = joined([own.batch for own in of_ranks], 26)
            assert all(map(torch.equal, actual, expected))


def test_bags_are_cut_and_joined():
    labels, dense, ids = torch.arange(4.0), torch.rand(4, 2), torch.arange(10)
    batch = labels, dense, ids, torch.tensor([0, 2, 2, 3, 5, 6, 6, 9, 10])  # two features
    for low, high in itertools.combinations_with_replacement(range(5), 2):
        parts = [rows_of(batch, *bounds, 2) for bounds in ((0, low), (low, high), (high, 4))]
        assert all(map(torch.equal, joined(parts, 2), batch))
    assert rows_of(batch, 1, 3, 2)[2].tolist() == [2, 6, 7, 8]


@pytest.mark.parametrize(
    ("sharding", "settings", "message"),
    [
        ({"columns": 3}, {}, "--columns 3: expected a divisor of embedding_dim, 4"),
        ({"columns": 2}, OPTIMIZERS["rowwise"], "--columns 2: rowwise_adagrad divides by the mean square of a whole"),
        ({"data_shards": 5}, {}, "--data-shards 5: expected a divisor of batch_size, 64"),
        ({"piece_rows": -1}, {}, "--piece-rows: expected a number from 0, got -1"),
    ],
)
def test_what_cannot_be_sharded_is_said(sharding, settings, message):
    with pytest.raises(UserError, match=message):
        Sharding(**sharding).check(sharded_runs.config_of(dict(settings)))


def test_what_is_not_there_is_said(capsys, monkeypatch):
    with pytest.raises(UserError, match="add --kernels fused"):
        Sharding().check(preset("mini"))
    with pytest.raises(UserError, match="4 ranks, and the tables are 3 pieces; use --columns or --piece-rows"):
        place(pieces([11, 21, 31], Sharding()), 4)
    with pytest.raises(UserError, match="--device cuda:1: under torchrun expected cpu or cuda"):
        of_rank("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"--device: 2 ranks on .*, which has 1 usable CUDA devices"):
        of_rank("cuda")
    for option in (("--columns", "2"), ("--timeout", "5"), ("--exchange", "bf16")):
        with pytest.raises(SystemExit):
            main(["--data", "nowhere", *option])
        assert capsys.readouterr().err == f"python -m model.train: error: {option[0]}: only under torchrun\n"


def test_a_signal_that_comes_by_two_ways_is_one(monkeypatch, capfd):
    """From the terminal, and once more by torchrun; later it is another one."""
    monkeypatch.setattr(SharedSignals, "SAME", 3600.0)
    with SharedSignals(SimpleNamespace(is_first=True)) as signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
            assert signals.own == signal.SIGINT
        assert capfd.readouterr().err.count("waiting for") == 1
        monkeypatch.setattr(SharedSignals, "SAME", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


class Event:
    """Of a device that gets there at the asked-for time of this number."""

    def __init__(self, done_at: int):
        self.left = done_at

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_who_waits_for_a_device_hears_of_a_timeout_and_of_another_ranks_end(monkeypatch):
    monkeypatch.setattr(sharding_ranks, "PATIENCE", 0.01)
    ranks = Ranks.__new__(Ranks)
    ranks.rank, ranks.timeout, ranks.is_to_end, ranks.notes = 0, 0.1, False, "a store"
    beats = itertools.count()
    alive = {"_beats": lambda: {rank: [str(next(beats))] for rank in range(3)}}
    monkeypatch.setattr(Ranks, "_beats", lambda _self: alive["_beats"]())
    ranks.wait_for(Event(5))
    with pytest.raises(Lost, match="no answer within --timeout"):
        ranks.wait_for(Event(10**9))
    ranks.timeout, ranks.is_to_end = 60, True
    ranks.wait_for(Event(300))  # all are there, and will agree to end
    alive["_beats"] = lambda: {0: [str(next(beats))], 1: [str(next(beats))], 2: ["7"]}
    with pytest.raises(Lost, match="ended by a signal"):
        ranks.wait_for(Event(10**9))
    alive["_beats"], ranks.notes = dict, None  # the store has ended with its rank
    with pytest.raises(Lost, match="ended by a signal"):
        ranks.wait_for(Event(10**9))


def test_a_thread_sees_that_the_main_one_stands_still(monkeypatch):
    now = SimpleNamespace(value=100.0)
    monkeypatch.setattr(beats_module.time, "monotonic", lambda: now.value)
    before = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(-1)
    try:
        for how in ("alive", "quiet", "signal", "hangs"):
            watch = beats_module.Watch(0, timeout=20)
            if how == "signal":
                signal.raise_signal(signal.SIGTERM)
            begin, message = now.value, ""
            while not message and now.value < begin + 60:
                beat = "7" if how in ("quiet", "signal") else str(now.value)
                theirs = "between steps 8 and 9" if how == "hangs" else "in step 9"
                message = watch.look({0: [str(now.value), "in step 9", "a"], 1: [beat, theirs, "b"]}, "in step 9")
                now.value += 1
            seconds = now.value - begin
            expected = {"alive": (60, ""), "hangs": (27, "b hangs, between steps 8 and 9: no answer within --timeout")}
            killed = "b answers no more, in step 9: killed, or stopped"
            assert (seconds, message) == (expected | {"quiet": (27, killed), "signal": (7, killed)})[how]
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.set_wakeup_fd(before[1])


def test_a_part_of_a_file_is_one(tmp_path):
    (tmp_path / "file").write_bytes(b"abcdefgh")
    with _Part(tmp_path / "file", 2, 6) as part:
        assert part.read() == b"cdef"
        assert (part.seek(-2, 2), part.read(), part.tell()) == (2, b"ef", 4)
        assert (part.seek(1), part.read(100), part.seek(-2, 1), part.read(1)) == (1, b"def", 2, b"e")


@pytest.mark.parametrize(
    ("file", "left", "message"),
    [
        (".metadata", None, r"/.metadata: no such file; copy the folder, for step-000050/\* is without it"),
        (".metadata", 0, r"/.metadata: damaged: EOFError"),
        (".metadata", 90, r"/.metadata: damaged: .*Error"),
        ("__0_0.distcp", None, r": not a checkpoint, or a damaged one: .*__0_0.distcp: No such file or directory"),
        ("__0_0.distcp", 0, r": not .*: nothing readable of 0.weight in __0_0.distcp"),
        ("__0_0.distcp", 500, r": not .*: nothing readable of 0.weight in __0_0.distcp"),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_file_of_a_checkpoint_that_is_missing_or_cut_off_is_named(tmp_path, capfd, file, left, message):
    """And torch prints no tracebacks of its own."""
    folder = tmp_path / "step-000050"
    dcp.save({"0.weight": torch.arange(600.0)}, checkpoint_id=folder, no_dist=True)
    capfd.readouterr()
    whole = (folder / file).read_bytes()
    (folder / file).unlink()
    if left is not None:
        (folder / file).write_bytes(whole[:left])
    with pytest.raises(UserError, match=f"^{folder}{message}"):
        read_pieces(folder, {"0.weight": torch.empty(600)})
    assert capfd.readouterr() == ("", "")
