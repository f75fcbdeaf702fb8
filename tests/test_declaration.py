"""kernels.dispatch.declaration and signature: what a declaration refuses, and what a call's integers may be."""

import re

import numpy as np
import pytest
import torch

import kernels
from kernels.dispatch import signature
from kernels.dispatch.declaration import Declaration, SavedBy

SCHEMA = "(Tensor x, str mode) -> Tensor out"


def declared(name="op", **options) -> Declaration:
    return Declaration(name, SCHEMA, **{"eager": print, "check": print, "outputs": {"out": print}, **options})


def test_numpys_sizes_are_checked_as_pythons_are():
    for one in (1, np.int64(1)):
        with pytest.raises(ValueError, match=r"offsets must have shape \[4\], for num_tables = 3; got \[3\]"):
            kernels.expand_table_ids(torch.tensor([0, 1, 2]), None, 3 * one, one, one, backend="eager")


def test_a_package_without_files_is_named(tmp_path, monkeypatch):
    (tmp_path / "a_folder_alone").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"^op: a_folder_alone has no __init__.py$"):
        _ = declared(package="a_folder_alone").folder
    with pytest.raises(ValueError, match=r"^op: there is no package a_folder_of_nobody"):
        _ = declared(package="a_folder_of_nobody").folder


@pytest.mark.parametrize("letter", ["\t", "\n"])
def test_names_that_would_cut_what_the_core_is_told_are_refused(letter):
    name = f"a{letter}b"
    saves = SavedBy("mode", {"sum": (), name: ("x",)})
    for options in ({"name": name}, {"backends": ("cuda", name)}, {"saves": saves}):
        message = f"op {options.get('name', 'op')!r}: {name!r} must have no tab and no newline"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            declared(**options)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("(Tensor x, Report report) -> Tensor out", "Report report"),
        ("(Tensor x) -> Number out", "Number out"),
        ("(Tensor x) -> (Tensor out, str mode)", "str mode"),
        ("(Tensor x) -> Tensor(a!) out", "Tensor(a!) out"),
        ("(Tensor x) -> Tensor? out", "Tensor? out"),
    ],
)
def test_a_schema_has_no_type_where_it_means_nothing(text, part):
    with pytest.raises(ValueError, match=f"^{re.escape(f'schema {text}: {part!r} must be one of Tensor, ')}"):
        signature.parse(text)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("x [N]: floating; bais [N]: x", "op: shapes says what bais must be, which the schema does not have"),
        ("x [N]: floating; w [N]: x", "op: shapes gives a shape to w, a list of tensors: use check="),
    ],
)
def test_shapes_of_what_has_none_are_refused(shapes, message):
    arguments, returns = signature.parse("(Tensor x, Tensor[] w) -> Tensor out")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        signature.Signature("op", arguments, returns, shapes)


def test_a_schema_is_parsed():
    text = "(Tensor x, Tensor? y, Tensor(a!) z, Number n, str mode) -> (Tensor out, Report r)"
    arguments, returns = signature.parse(text)
    assert [(a.type, a.name) for a in arguments] == [
        ("Tensor", "x"), ("Tensor?", "y"), ("Tensor(a!)", "z"), ("Number", "n"), ("str", "mode")
    ]
    assert [(r.type, r.name) for r in returns] == [("Tensor", "out"), ("Report", "r")]
    assert signature.parse("(Tensor(a!) x) -> ()")[1] == []
