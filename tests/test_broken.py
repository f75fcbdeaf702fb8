"""The known-broken Triton kernels of tests/broken, each rejected by the comparison that its mended version passes."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import re
from pathlib import Path

import pytest

from kernels import check, dispatch, runtime
from kernels.check import Case, check_gradients
from kernels.check.contract.gradients import CHUNKED, SHAPES

ROOT = Path(__file__).resolve().parent.parent
DEVICE = runtime.device()
BROKEN = ROOT / "tests" / "broken"
# Only the interpreter sees a load; on a GPU it is the write that shows, afterwards.
BESIDE = (
    "a load from x_ptr is out of bounds in 1 lane"
    if runtime.triton_mode() == "interpreted"
    else "the memory beside out was changed: 1 element was written after its last"
)
# What each wrong line of tests/broken should be, and the case that catches it, with what is said there.
FORWARD = {
    "bias_modulo_8": ("offsets % 8", "offsets % COLUMNS", "7×1 float32: .*Hint: rows: "),
    "grid_columns_squared": ("columns * columns", "out.numel()", "1000×4 float32: .*never written.*grid or mask: "),
    "mask_off_by_one": ("<= elements", "< elements", f"1×1 float32: {BESIDE}.*Hint: mask: "),
    "wide_modulo_8": ("8 if WIDE and COLUMNS > 8 else COLUMNS", "COLUMNS", "1×1023 float32: "),
    "branch_off_by_one": ("elements + 1", "elements", f"1×1023 float32: {BESIDE}"),
    "clamped_miss": (
        "found * hit.to(found.dtype)",
        "tl.where(hit, found, 0.0)",
        "13×40 float32 special deepstack 11 0 0: .*expected 0, got nan",
    ),
    "id_past_the_end": ("<= height", "< height", "40×16 float32 tiny one id hostile int32: "),
    "pairs_by_column": (
        "j * (2 * FEATURES + 1 - j) // 2 + i - j - 1",
        "i * (i - 1) // 2 + j",
        "1×1 float32 4 features padded to 1: ",
    ),
    "diagonal_twice": ("j * columns + i, upper", "j * columns + i, upper & (i != j)", "1×1 float32 relu ieee: "),
    "last_block_dropped": ("columns // 16", "triton.cdiv(columns, 16)", "1×1 float32 relu ieee: "),
    "mlp_last_step": ("K // STEP * STEP", "K", "1×1 float32 relu identity ieee: "),
    "mlp_masked_by_product": (
        "(column < x_columns), other=0.0) * (column < K)",
        "(column < K), other=0.0)",
        "13×40 float32 special relu identity ieee: .*got nan",
    ),
    "negative_multiplier": ("tl.abs(multiplier)", "multiplier", "1×7 float32 -1.25 gelu: "),
}
BACKWARD = {
    "chunks_dropped": ("min(chunks, CHUNKS)", "chunks", "600×4 float32, the gradient of bias: "),
    "sum_over_the_wrong_axis": ("axis=1", "axis=0", "1×7 float32, the gradient of bias: "),
    "one_side_of_the_diagonal": (
        "j < i",
        "j != i",
        "1×7 float32 4 features padded to 1, the gradient of dense: ",
    ),
    "one_of_two_roles": ("0.0 * tl.load", "tl.load", "1×7 float32 relu ieee, the gradient of c: "),
    "atomic_sum": ("triton.cdiv(rows, 4)", "1", "70×9 float32, the gradients: two runs gave different bits"),
}
# For a GPU a program of theirs that holds all pairs of wide vectors compiles for minutes; the interpreter takes it.
INTERPRETED = ("pairs_by_column", "diagonal_twice")
interpreter_or_gpu = pytest.mark.skipif(
    bool(reason := runtime.why_not("triton", DEVICE.type)), reason=reason or "Triton runs here"
)


def hold(module, named: str = "") -> None:
    """The comparison that the op's own kernels pass, on a broken module's function: its values, or its gradients.
    named: of the cases only each twelfth, and those that this text begins with."""

    def taken(cases: list[Case]) -> list[Case]:
        return [case for i, case in enumerate(cases) if not named or i % 12 == 1 or named.startswith(str(case))]

    op = next(op for op in dispatch.ops() if hasattr(module, op))
    function = getattr(module, op)
    if "autograd" not in Path(module.__file__).read_text():
        check.check(op, function, cases=taken(check.cases_of(op, DEVICE)))
        return
    for case in taken([Case(shape) for shape in (*SHAPES, CHUNKED)]):
        for call in itertools.islice(check.calls_of(op, case, DEVICE), 1):  # which catches each of these
            (out,) = check.eager_results(check.spec_of(op), call).values()
            grad = Case(tuple(out.shape)).tensor(9, DEVICE)
            check_gradients(op, function, call, (True,) * len(call.tensors), grad)


@interpreter_or_gpu
@pytest.mark.parametrize("name", FORWARD | BACKWARD)
def test_a_broken_kernel_is_rejected_by_a_case_with_a_name(name):
    message = (FORWARD | BACKWARD)[name][2]
    with pytest.raises(AssertionError, match=re.compile(f"^[a-z_]+, case {message}", re.DOTALL)):
        hold(importlib.import_module(f"broken.{name}"))


@interpreter_or_gpu
@pytest.mark.parametrize("name", FORWARD | BACKWARD)
def test_a_broken_kernel_passes_once_its_wrong_line_is_mended(name, tmp_path):
    if name in INTERPRETED and DEVICE.type == "cuda":
        pytest.skip("mended, it goes through Triton's interpreter only")
    wrong, right, message = (FORWARD | BACKWARD)[name]
    lines = (BROKEN / f"{name}.py").read_text().splitlines()
    (line,) = [i for i, text in enumerate(lines) if text.endswith("# the wrong line")]
    assert wrong in lines[line]
    lines[line] = lines[line].replace(wrong, right)
    (tmp_path / "mended.py").write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(f"mended_{name}", tmp_path / "mended.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hold(module, message)


@interpreter_or_gpu
def test_convenient_shapes_would_let_the_broken_kernels_pass():
    """Rows of 8, and squares: why the cases are what they are."""
    check.check("add_relu", importlib.import_module("broken.bias_modulo_8").add_relu, cases=[Case((300, 8))])
    check.check("add_relu", importlib.import_module("broken.grid_columns_squared").add_relu, cases=[Case((64, 64))])


@pytest.mark.parametrize("path", sorted(BROKEN.glob("*.*")), ids=lambda path: path.name)
def test_a_broken_kernel_says_so_and_which_line(path):
    assert re.match(r'("""|// )BROKEN ON PURPOSE: ', path.read_text())
    if path.suffix == ".py":
        assert len(re.findall("# the wrong line$", path.read_text(), re.MULTILINE)) == 1


def test_nothing_in_kernels_imports_the_broken_ones():
    names = {path.stem for path in BROKEN.glob("*.*")}
    assert len(names) >= len(FORWARD | BACKWARD)
    for path in (ROOT / "kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"broken", *names} & {part for name in imported for part in name.split(".")}, path
    for path in (ROOT / "kernels").rglob("*.cu*"):
        for included in re.findall(r"#\s*include\s+(.*)", path.read_text()):
            assert "broken" not in Path(included.strip('"<>')).parts, path
