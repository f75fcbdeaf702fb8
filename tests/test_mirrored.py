"""What stands in Python and in C++ both, since neither can read the other: constants of the two must be the same."""

from __future__ import annotations

import re

import torch
from torch.testing._comparison import default_tolerances

from kernels.dispatch import cubin, input_errors, plan, varying
from kernels.dtypes import DTYPES, FLOATING, INTEGERS
from kernels.ops.dlrm import shape
from kernels.ops.fused_mlp import eager, packing
from kernels.runtime import KERNELS

FIELDS = ("CLAIMS", "FOUND", "KIND", "COUNT")  # of a report


def enumerators(header: str, name: str) -> list[str]:
    """The names in `enum <name> : int64_t { … }` of a header, in order; the value of each is its position."""
    body = re.search(rf"enum {name} : int64_t {{(.*?)}}", (KERNELS / header).read_text(), re.DOTALL)[1]
    assert "=" not in body
    return [word.strip() for word in body.split(",")]


def constants(header: str) -> dict[str, int]:
    """name → value of a header's `constexpr … name = value, …;` where the values are numbers."""
    values = {}
    for statement in re.findall(r"^constexpr [\w ]+? (\w+ = .*?);", (KERNELS / header).read_text(), re.MULTILINE):
        values |= {name: int(value.replace("'", "")) for name, value in re.findall(r"(\w+) = ([\d']+)", statement)}
    return values


def test_the_kinds_of_a_kernels_arguments():
    kinds = enumerators("dispatch/plan.h", "Kind")
    positions = {"tensor": plan.SLOT, "literal": plan.LITERAL, "computed": plan.COMPUTED,
                 "scalar_float": plan.SCALAR_FLOAT, "scalar_double": plan.SCALAR_DOUBLE, "elements": plan.ELEMENTS,
                 "stride": plan.STRIDE}
    assert {name: value for value, name in enumerate(kinds)} == positions


def test_the_operations_of_a_program():
    operations = enumerators("dispatch/plan.h", "Operation")
    assert len(operations) == 10
    assert all(getattr(varying, name.upper()) == value for value, name in enumerate(operations))


def test_the_kinds_of_a_launch():
    kinds = {name.upper(): value for value, name in enumerate(enumerators("cubin/libcuda.h", "Kind"))}
    assert kinds == {"PLAIN": cubin.PLAIN, "COOPERATIVE": cubin.COOPERATIVE, "EARLY": cubin.EARLY}


def test_the_dtypes():
    entries = re.findall(r"entry\((\w+), (\d+), \w+, \w+\)", (KERNELS / "dispatch/call.h").read_text())
    listed = {getattr(torch, "bool" if name == "boolean" else name) for name, _ in entries}
    assert len(entries) == len(listed)
    assert listed == DTYPES.keys()
    assert {*FLOATING, *INTEGERS} <= listed
    assert len({known.triton for known in DTYPES.values()}) == len(DTYPES)


def test_the_tolerances_are_torchs_own():
    assert {dtype: DTYPES[dtype].tolerances for dtype in FLOATING} == {d: default_tolerances(d) for d in FLOATING}
    assert not any(DTYPES[dtype].tolerances for dtype in INTEGERS)


def test_the_layout_of_a_report():
    """dispatch/input_errors.py has it; device/report.cuh writes by it in C++, and device/report.py in Triton."""
    names = {"b": "DIGEST_B", "c": "DIGEST_C", **{name.lower(): name for name in FIELDS}, "size": "SIZE"}
    expected = {f"report_{cpp}": getattr(input_errors, python) for cpp, python in names.items()}
    assert constants("device/report.cuh") == expected
    source = (KERNELS / "device/report.py").read_text()
    digest = {name: int(value) for name, value in re.findall(r"^REPORT_(\w): .*?\(([\d_]+)\)", source, re.MULTILINE)}
    assert digest == {"B": input_errors.DIGEST_B, "C": input_errors.DIGEST_C}
    offsets = {int(number) for number in re.findall(r"report_ptr \+ (\d)", source)}
    assert offsets == {*range(input_errors.FOUND, input_errors.SIZE)}


def test_activations_and_what_their_derivatives_read():
    """Of fused_mlp and dlrm_forward."""
    text = (KERNELS / "device/activations.cuh").read_text()
    lists = re.findall(r"#define FUSED_\w*ACTIVATIONS\(each\) (.*)", text)
    assert set(re.findall(r"each\((\w+)\)", " ".join(lists))) == set(shape.ACTIVATIONS) == set(eager.ACTIVATIONS)
    for name in ("derivative_reads_input", "derivative_reads_every_bit"):
        body = re.search(rf"constexpr bool {name}\(Activation a\) {{(.*?)}}", text, re.DOTALL)[1]
        assert set(re.findall(r"Activation::(\w+)", body)) == set(filter(getattr(packing, name), eager.ACTIVATIONS))
