"""Lesson 13: the cells' kernels in the interpreter, their texts, what the compiler makes of them, what ncu counts."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.inductor.machine_code import registers
from lessons.n13_softmax_to_matrix_product import experiment, product_kernels, puzzles, recorded
from lessons.n13_softmax_to_matrix_product.product_kernels import MORE, STEPS, describe, launch, layer_kernel
from lessons.shared import answers, ncu
from lessons.shared.occupancy import programs_an_sm
from lessons.shared.records import Unsaved
from lessons.shared.to_cubin import compiled

ROOM = Path(__file__).parent
ASSIGNED = ("large", "steps", "wide", "more")  # in the cells: what the steps are launched with
EDGES = (40, 24, 40)  # M, N, K: no multiple of a tile


@functools.cache
def cell(name: str) -> str:
    (path,) = ROOM.parents[1].glob("13_*.ipynb")
    return next("".join(each["source"]) for each in json.loads(path.read_text())["cells"] if each["id"] == name)


def operands(M: int, N: int, K: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).to(runtime.device()) for shape in ((M, K), (N, K), (N,)))


@pytest.mark.parametrize("name", [*STEPS, *MORE])
def test_each_step_computes_the_layer(name):
    x, weight, bias = operands(*EDGES)
    x[7] = float("nan")
    step = {"ROWS": 16, "COLUMNS": 16, "STEP": 16} | {
        option: value for option, value in (STEPS | MORE)[name].items() if option not in ("ROWS", "COLUMNS", "STEP")
    }
    layer = partial(launch, layer_kernel, **step) if name in STEPS else partial(describe, **step)
    expected = torch.relu(x.double() @ weight.double().T + bias.double())
    rounded = {"rtol": 0.01, "atol": 0.02} if runtime.device().type == "cuda" else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(layer(x, weight, bias).double(), expected, **rounded, equal_nan=True)


def test_the_first_kernels_at_an_odd_size(tmp_path):
    (tmp_path / "cells.py").write_text(
        "import torch\nimport triton\nimport triton.language as tl\n" + cell("long-rows") + "\n" + cell("naive")
    )
    spec = importlib.util.spec_from_file_location("cells", tmp_path / "cells.py")
    cells = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cells)
    x, weight, bias = operands(5, 3, 41)
    torch.testing.assert_close(cells.naive(x, weight, bias), torch.relu(x @ weight.T + bias))
    out = torch.empty_like(x)
    cells.long_rows[(5,)](x, out, 41, BLOCK=16)
    torch.testing.assert_close(out, torch.softmax(x, 1))


def test_the_cells_and_the_module_are_one_text():
    text = Path(product_kernels.__file__).read_text()
    assert cell("launch").partition("\n\n\n")[0] in text
    assert cell("descriptors") in text
    assert cell("describe") in text
    answer, _, _ = answers.solutions(ROOM)["product"].source.partition("\n\n\n")
    assert answer.replace("my_kernel", "layer_kernel") in text
    names: dict[str, object] = {}
    for name in ("steps", "tma"):
        for line in ast.parse(cell(name)).body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]).partition("[")[0] in ASSIGNED:
                exec(ast.unparse(line), {}, names)
    assert (names["steps"], names["more"]) == (STEPS, MORE)


def test_the_order_of_tiles():
    for rows, columns, group in ((5, 4, 2), (8, 7, 3), (2, 9, 8), (4, 4, 1)):
        tiles = [puzzles.place(program, rows, columns, group) for program in range(rows * columns)]
        assert sorted(tiles) == [(row, column) for row in range(rows) for column in range(columns)]


# ------------------------------------------------------------------------------------------------------------ compiled


def made(name: str, *, odd: bool = False):
    """A step for an H200, in bfloat16."""
    step = {"ROWS": 64, "COLUMNS": 64, "STEP": 32, "num_warps": 4, "num_stages": 1} | STEPS.get(name, {})
    types = {tensor: "*bf16" for tensor in ("x", "weight", "bias", "out")} | dict.fromkeys("MNK", "i32")
    if name in MORE:
        step |= {"STEP": 64, "num_warps": 8, "num_stages": 3} | MORE[name]
        step["FLATTEN"] = step.pop("persistent", False)
        rows, columns, depth = (step[side] for side in ("ROWS", "COLUMNS", "STEP"))
        tiles = {"x": (rows, depth), "weight": (columns, depth), "out": (rows, columns)}
        types |= {tensor: f"tensordesc<bf16[{a}, {b}]>" for tensor, (a, b) in tiles.items()}
    else:
        step.setdefault("GROUP", 1)
    options = {option: step.pop(option) for option in ("num_warps", "num_stages")}
    aligned = tuple(each for each, kind in types.items() if "desc" not in kind and not (odd and each == "K"))
    kernel = "descriptor_kernel" if name in MORE else "layer_kernel"
    module = product_kernels.__name__
    return compiled(f"{module}.{kernel}", tuple(types.items()), tuple(step.items()), aligned=aligned, **options)


def room(step) -> int:
    """Programs that an SM has shared memory for: 228 KB, 1 KB of it for each program's own use."""
    return 228 * 1024 // (step.shared + 1024)


def test_the_compiler_makes_of_the_steps_what_the_lesson_says():
    tiles, stages, larger, odd = made("tiles"), made("stages"), made("larger tiles"), made("larger tiles", odd=True)
    assert re.search(r"wgmma\.mma_async|mma\.sync", tiles.ptx)
    ahead = re.compile(r"cp\.async\.c[ag]")
    assert [bool(ahead.search(each.ptx)) for each in (tiles, stages, larger, odd)] == [False, True, True, False]
    assert stages.shared == 3 * tiles.shared
    assert min(room(larger), programs_an_sm(256, registers(larger.cubin))) == 2


@pytest.mark.parametrize(("name", "programs"), [("descriptors", 1), ("two stages", 2), ("wide descriptors", 1)])
def test_how_many_programs_with_descriptors_an_sm_has_room_for(name, programs):
    step = made(name)
    assert "cp.async.bulk.tensor" in step.ptx
    assert room(step) == programs


# ------------------------------------------------------------------------------------------------------------- counted

PRINTED = """
  layer_kernel (4096, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    dram__bytes_read.sum                                  Mbyte       134.23
    gpu__time_duration.sum                                   us         3.50
    l1tex__m_xbar2l1tex_read_sectors.sum                 sector    1,000,000
    lts__t_sectors_srcunit_tex_op_read.sum               sector      500,000
    L2 Cache Throughput                                       %        83.36
    Compute (SM) Throughput                                   %        42.92
"""


def test_what_ncu_counts_is_shown(monkeypatch, capsys):
    lesson = experiment.Products(torch.device("cpu"))
    lesson.gpu = object()
    monkeypatch.setattr(ncu, "run", lambda command: ncu.ncu_lines(PRINTED))
    counted = lesson.counted()
    assert counted == {
        "tiles": {
            "to_sms": 32e6, "from_l2": 16e6, "from_memory": 134.23e6, "ncu_us": 3.5, "l2_percent": 83.36,
            "sm_percent": 42.92,
        }
    }
    rows = [{"part": "step", "name": "tiles", "match": "ok", "us_p50": 4.0} | counted["tiles"]]
    monkeypatch.setattr(recorded, "PRODUCTS", Unsaved("products", measured=rows))
    capsys.readouterr()
    recorded.show_counted()
    assert "SMs got 0.0 GB, L2 read 0.0 GB in 4.0 µs: 4.0 TB/s; SMs 43 % busy" in capsys.readouterr().out


def test_without_ncu_nothing_is_shown(monkeypatch, capsys):
    rows = [{"part": "step", "name": "tiles", "match": "ok", "us_p50": 4.0}]
    monkeypatch.setattr(recorded, "PRODUCTS", Unsaved("products", measured=rows))
    recorded.show_counted()
    assert capsys.readouterr().out == "counted by ncu: no record yet\n"
