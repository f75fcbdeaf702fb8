"""25, Past one GPU: what is counted in its cells, and torch.distributed's default timeout."""

from __future__ import annotations

import re
from datetime import timedelta

from torch.distributed import init_process_group
from torch.distributed.constants import default_pg_timeout

from lessons.shared.claim import claim, printed

Line = tuple[str, int, float, float, int, int]  # cut, pieces; GB, × the mean; bytes of ids, of vectors


def table(gpus: int) -> list[Line]:
    """The table's lines for so many GPUs."""
    (block,) = re.findall(rf"^{gpus} GPUs .*\n((?: .*\n)+)", printed("25", "table"), flags=re.M)
    form = r"(\w+) +(\d+) +([\d.]+) GB +([\d.]+) × the mean +([\d,]+) +([\d,]+)"
    lines = [re.fullmatch(form, line.strip()).groups() for line in block.splitlines()]
    return [
        (way, int(k), float(held), float(reads), int(ids.replace(",", "")), int(vectors.replace(",", "")))
        for way, k, held, reads, ids, vectors in lines
    ]


def ids_and_hot() -> tuple[int, int]:
    """In a row of the batch: all ids, and those of one feature."""
    return tuple(map(int, re.search(r"has (\d+) ids, (\d+) of them", printed("25", "fit")).groups()))


def one_feature_has_almost_half() -> tuple:
    ids, hot = ids_and_hot()
    assert 0.45 < hot / ids < 0.5
    return ()


def busiest_of_whole_tables() -> tuple[float, float]:
    """No placement helps: one feature has that part of all ids."""
    ids, hot = ids_and_hot()
    times = [table(gpus)[0][3] for gpus in (8, 64)]
    assert times == [round(gpus * hot / ids, 1) for gpus in (8, 64)]
    return tuple(times)


def columns_send_ids_and_rows_send_vectors() -> tuple:
    for gpus in (8, 64):
        (_, _, held, reads, ids, vectors), *cuts = table(gpus)
        for way, k, fullest, busiest, of_ids, of_vectors in cuts:
            assert (fullest, busiest) < (held, reads)
            assert (of_ids, of_vectors) == (k * ids, vectors * (k if way == "rows" else 1))
            assert abs(of_ids - vectors * k / 16) < 0.05 * of_ids  # a quarter in four blocks, as many in sixteen
    return ()


def only_the_last_bits_differ() -> tuple:
    assert float(re.search(r"at most (\S+) from it", printed("25", "equal"))[1]) < 2e-7
    return ()


def both_stop() -> tuple:
    first, second = re.search(r"\[(\d+), (\d+)\] steps", printed("25", "equal")).groups()
    assert first == second
    return ()


def one_rank_and_two_give_the_same() -> tuple:
    one, two = printed("25", "torchrun").splitlines()
    assert one == two
    return ()


def default_timeouts() -> tuple:
    assert default_pg_timeout == timedelta(minutes=30)
    assert "Default value is 10 minutes for NCCL" in init_process_group.__doc__
    return ()


claim("25", "**Predict** how many GPUs of 80 GB hold the Terabyte's tables")
claim("25", "(By default gloo waits half an hour, and NCCL ten minutes.)", default_timeouts)
claim("25", "The losses differ in the last bits only", only_the_last_bits_differ)
claim("25", "both ranks stop after the same step", both_stop)
claim("25", "One feature has almost half of all ids", one_feature_has_almost_half)
claim(
    "25", "the GPU with the hot feature reads {:.1f} times the mean of 8 GPUs, and {:.1f} times that of 64.",
    busiest_of_whole_tables,
)
claim(
    "25", "Their ids take a quarter as many bytes as the vectors with four blocks, and as many with sixteen.",
    columns_send_ids_and_rows_send_vectors,
)
claim("25", "On one rank, and on two:", one_rank_and_two_give_the_same)
