"""Lesson 08: what is measured of which kernel, its picture and tables, what the compiler says, the answers."""

import inspect
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.check import OutOfBounds, check, late_accesses, spec_of
from kernels.device.activations import activate
from kernels.inductor.machine_code import accesses, sass
from lessons.n08_triton_kernels import experiment, pictures, pointwise_kernels, recorded
from lessons.n08_triton_kernels import puzzles as triton_puzzles
from lessons.shared import answers, h200
from lessons.shared.puzzle import look_beside, shares
from lessons.shared.records import NO_RECORD, Unsaved

triton = pytest.importorskip("triton")  # after kernels, which chooses the interpreter
tl = triton.language
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / "08_triton_kernels.ipynb"


@triton.jit
def unmasked_loads(x, bias, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(bias + i), i < n)


def text(function) -> str:
    return inspect.getsource(getattr(function, "fn", function)).strip()


def test_what_is_timed_is_what_the_cells_and_the_answers_say():
    entries = json.loads(NOTEBOOK.read_text())["cells"]
    cells = "\n".join("".join(cell["source"]) for cell in entries if cell["cell_type"] == "code")
    for name in ("add_relu", "relu_forms", "launch"):
        assert text(getattr(pointwise_kernels, name)) in cells
    solved = answers.solutions(ROOM)
    assert text(pointwise_kernels.two_ways) in solved["edge"].source
    for name in ("add_mul_block", "add_mul_activation"):
        assert text(getattr(pointwise_kernels, name)) in solved["capstone"].source


@interpreted
def test_what_is_not_recorded_yet_says_so_and_is_shown_when_it_is(monkeypatch, capsys):
    lesson = experiment.Pointwise(torch.device("cpu"))
    lesson.gpu = SimpleNamespace(
        capture=lambda work: (work, None), clear=lambda: None, synchronize=lambda: None,
        times=lambda calls: {number: [60.0, 40.0, 80.0] for number in calls},
    )
    replayed = lesson.replayed({3: lambda: None})
    assert replayed == {3: {"replay_us": 60.0 / experiment.COUNT}}
    lesson = experiment.Pointwise(torch.device("cpu"))
    lesson.measure(["add_relu"])

    def printed(rows) -> str:
        monkeypatch.setattr(recorded, "POINTWISE", Unsaved("pointwise", rows))
        capsys.readouterr()
        recorded.show_relus("odd", (65.0, 64.0))
        return capsys.readouterr().out

    assert printed([row for row in lesson.rows if row["name"] != "eager"]).count(NO_RECORD) == 2  # nor torch.compile
    out = printed([row | {"replay_us": 7.5} for row in lesson.rows])
    assert out.count(NO_RECORD) == 1
    assert "replayed 7.5; here 65.0 µs, replayed 64.0" in out


def test_the_table_of_offsets_is_what_is_stored(capsys):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    (cell,) = [cell for cell in cells if "".join(cell["source"]) == "recorded.show_offsets()"]
    recorded.show_offsets()
    assert capsys.readouterr().out == "".join(cell["outputs"][0]["text"])


def test_the_race_is_drawn_with_what_was_measured_here():
    labels = ("yours, or the answer", "the library", "torch.compile", "eager", "a copy")
    for here in (None, dict.fromkeys(labels, 90.0)):
        pictures.draw_last(here=here).canvas.draw()


@pytest.mark.parametrize("odd", [False, True])
def test_how_wide_the_accesses_are(odd):
    """What the cell prints, and what the answer to its puzzle mends."""
    sizes = {"COLUMNS": 511 if odd else 512, "BLOCK": 1024}
    widths = accesses(h200.compiled(pointwise_kernels.add_relu, 4, odd=odd, **sizes).ptx)
    assert {*widths["ld"], *widths["st"]} == {4 if odd else 16}
    widths = accesses(h200.compiled(pointwise_kernels.two_ways, 4, odd=odd, **sizes).ptx)
    if odd:  # without a mask x and the result are wide, and the bias narrow; the last program's are all narrow
        assert widths == {"ld": {16: 2, 4: 8 + 16}, "st": {16: 2, 4: 8}}
    else:
        assert widths == {"ld": {16: 2 * 4}, "st": {16: 2 * 2}}


def test_at_an_odd_size_all_loads_come_before_the_first_sum():
    lines = sass(h200.compiled(pointwise_kernels.add_relu, 4, odd=True, COLUMNS=511, BLOCK=1024).cubin)
    if not lines:
        pytest.skip("there is no nvdisasm here")
    first_sum = next(number for number, line in enumerate(lines) if "FADD" in line)
    loads = [number for number, line in enumerate(lines) if "LDG" in line]
    assert len(loads) == 16
    assert max(loads) < first_sum


@triton.jit
def gelu(x, out, ERF: tl.constexpr):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    z = tl.load(x + i).to(tl.float32)
    tl.store(out + i, 0.5 * z * (1 + tl.erf(z * 0.7071067811865476)) if ERF else activate(z, "gelu"))


def test_the_librarys_gelu_takes_fewer_instructions():
    erf, polynomial = (sass(h200.compiled(gelu, 4, dtype="bf16", ERF=way).cubin) for way in (True, False))
    if not erf:
        pytest.skip("there is no nvdisasm here")
    assert len(erf) > 1.4 * len(polynomial)


@interpreted
@pytest.mark.slow  # all of the contract's cases
def test_the_answer_passes_the_ops_contract(capsys):
    kernel = pointwise_kernels.add_mul_activation
    spec = replace(spec_of("add_mul_activation"), calls=triton_puzzles._capstone_calls)
    check("capstone", lambda *arguments: pointwise_kernels.launch(kernel, *arguments), spec=spec, device="cpu")
    options = ((case, None if case.every_option else 1) for case in spec.cases(spec.tensors))
    calls = sum(len([*itertools.islice(spec.calls(case, torch.device("cpu")), most)]) for case, most in options)
    assert capsys.readouterr().out == f"capstone: {calls} cases passed on cpu\n"


def test_a_late_program_is_seen_to_load_and_store_where_it_should():
    tensors = [torch.zeros(16, dtype=torch.bfloat16)] * 4
    names = {"COLUMNS": 16, "ACTIVATION": "relu", "WIDE": True, "BLOCK": 16}
    made = late_accesses(pointwise_kernels.add_mul_activation, 2**28, *tensors, 0.5, 2**32 + 5, **names)
    five = [*range(2**32, 2**32 + 5)]
    assert [access.offsets for access in made if access.what == "store" and access.tensor == "out"] == [five]
    loads = {
        tensor: [access.offsets for access in made if access.what == "load" and access.tensor == tensor]
        for tensor in ("x", "y", "bias")
    }
    assert all(len(of) == 3 for of in loads.values())
    assert five in loads["x"]
    assert five in loads["y"]
    assert [0, 1, 2, 3, 4] in loads["bias"]


def test_a_load_beside_a_tensor_is_seen_where_it_leaves_no_trace():
    message = r"a load from x is out of bounds in 8 lanes: the first is at offset 40, 1 beyond its last \(it spans 40\)"
    with pytest.raises(OutOfBounds, match=message):
        look_beside(unmasked_loads, (3,), *(torch.zeros(40) for _ in range(3)), 40, BLOCK=16)


def test_a_gpu_gets_all_cases_and_first_those_of_the_interpreter():
    """So a reader on a GPU is told of the same case."""
    names = spec_of("add_mul_activation").tensors
    every, some = triton_puzzles._all_cases(names), triton_puzzles._some_cases(names)
    shared = [case for case in some if case in every]
    assert every[: len(shared)] == shared
    assert len(shared) > len(some) / 2
    contract = spec_of("add_mul_activation").cases(names)
    assert len(every) == len(contract)
    assert all(case in contract for case in every)


@pytest.mark.parametrize(
    ("stores", "message"),
    [
        ([(0, [0, 1]), (1, [2, 1])], "programs 0 and 1 both store element 1"),
        ([(0, [0, 1]), (0, [2, 0])], "program 0 stores element 0 twice"),
        ([(0, [0, 0])], "2 lanes of program 0 store element 0"),
    ],
)
def test_no_element_is_stored_twice(stores, message):
    with pytest.raises(AssertionError, match=message):
        shares._once(stores)


@interpreted
def test_on_a_gpu_the_same_stores_are_seen_by_another_process(monkeypatch):
    x, bias, out = torch.zeros(40), torch.zeros(8), torch.zeros(40)

    def launch(kernel) -> None:
        kernel[(3,)](x, bias, out, 40, COLUMNS=8, BLOCK=16)

    here = shares.stores_of(pointwise_kernels.add_relu, launch, out)
    monkeypatch.setattr(shares.runtime, "triton_mode", lambda: "compiled")
    assert here == shares.stores_of(pointwise_kernels.add_relu, launch, out)
    assert here == [(program, [*range(16 * program, min(16 * program + 16, 40))]) for program in range(3)]
