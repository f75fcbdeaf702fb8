"""The ops' library without Python: what is generated of the declarations, and what cannot be."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kernels import dispatch, library
from kernels.dispatch.signature import Signature, parse


def declared(schema, shape, reports=False):
    arguments, returns = parse(schema)
    shapes = {value.name: shape for value in returns}
    return SimpleNamespace(
        name="made_up",
        forms={"": Signature("made_up", arguments, returns)},
        outputs=tuple(shapes),
        reports=reports,
        _output_shapes=shapes,
    )


def test_the_stored_code_is_the_declarations():
    assert library.GENERATED.read_text() == library.generated(), "stale: python -m kernels.library"


def test_every_op_with_code_for_the_cpu_is_in_it():
    assert {op.name for op in library.ops()} == {
        op.name for op in map(dispatch.find, dispatch.names()) if "cpp" in op.backends
    }
    assert "table_lookup" in {op.name for op in library.ops()}


def test_shapes_become_expressions():
    source = library.function(declared(
        "(Tensor x, int n) -> Tensor out",
        lambda arguments: ((arguments["x"].shape[0], 2 * arguments["n"] + 1), torch.int64)
    ))  # fmt: skip
    assert "new_empty(x, {x.size(0), ((n * 2) + 1)}, ScalarType::Long)" in source


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (lambda arguments: ([*arguments["x"].shape], torch.int64), "takes x's apart"),
        (lambda arguments: ((len(arguments["x"].shape),), torch.int64), "number of dimensions"),
        (lambda arguments: (arguments["x"].shape[1:], torch.int64), "a part of x's shape"),
        (lambda arguments: ((arguments["x"].numel(),), torch.int64), "needs x.numel"),
        (lambda arguments: ((3 if arguments["n"] else 4,), torch.int64), "hangs on whether n"),
        (lambda arguments: ((*range(arguments["n"]),), torch.int64), "needs the value of n"),
        (lambda arguments: ("cw", torch.int64), "'cw' as a shape"),
        (lambda arguments: ((1.5,), torch.int64), "1.5 as a size"),
        (lambda arguments: ((1,), torch.complex64), "complex64 as a dtype"),
        (lambda arguments: ((arguments["x"][0],), torch.int64), "values of x"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(shape, why):
    with pytest.raises(library.LibraryError, match=f"made_up: .*{why}"):
        library.function(declared("(Tensor x, int n) -> Tensor out", shape))


@pytest.mark.parametrize("schema", ["(Tensor[] x) -> Tensor out", "(Tensor x, Number n) -> Tensor out"])
def test_so_are_arguments(schema):
    with pytest.raises(library.LibraryError, match=r"made_up: . is a "):
        library.function(declared(schema, None))


def test_an_op_that_takes_a_workspace_is_refused_by_name(monkeypatch):
    assert library.sources()
    assert library.sources("sm_90")
    sort = dispatch.find("embedding_bags_sort")
    monkeypatch.setattr(library, "ops", lambda: [sort])
    with pytest.raises(library.LibraryError, match=r"embedding_bags_sort: forward in cuda.cu takes a workspace"):
        library.sources("sm_90")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "libops.so"
    library.build(path)
    return path


@pytest.mark.slow
class TestBuilt:
    def test_it_asks_for_no_symbol_of_torchs_cpp_or_of_python(self, built):
        listed = subprocess.run(["nm", "-D", "--undefined-only", built], capture_output=True, text=True, check=True)
        names = [line.split()[-1] for line in listed.stdout.splitlines()]
        assert any(name.startswith("aoti_torch_") for name in names)
        assert not [name for name in names if name.startswith(("_ZN2at", "_ZN3c10", "_ZNK3c10", "Py", "_Py"))]

    @pytest.mark.parametrize("order", ["library kernels", "kernels library", "library"])
    def test_either_may_be_loaded_first(self, built, order):
        code = "import torch, sys\n"
        for what in order.split():
            code += "import kernels\n" if what == "kernels" else f"torch.ops.load_library({str(built)!r})\n"
        code += """
offsets = torch.tensor([0, 2, 2, 5])
print(torch.ops.fused_kernels.expand_table_ids.cpp(offsets, None, 3, 1, 5).tolist())
if "kernels" in sys.modules:
    table = kernels.IdTable([[5, 7, -3]])
    found = kernels.table_lookup(*table.storage(), torch.tensor([7, 8]), torch.zeros(2, dtype=torch.int32))
    print(found[1].tolist())
"""
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split("\n")[0] == "[0, 0, 2, 2, 2]"
        if "kernels" in order:
            assert "[2, 0]" in done.stdout

    def test_a_build_that_fails_says_why(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CXX", "false")
        with pytest.raises(library.LibraryError, match="false ended with exit status 1"):
            library.build(tmp_path / "libops.so")
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(library.LibraryError, match=r"the C\+\+ compiler no-such-compiler is missing: set CXX"):
            library.build(tmp_path / "libops.so")
        monkeypatch.delenv("CXX")
        monkeypatch.setattr(library, "nvcc", lambda: None)
        with pytest.raises(library.LibraryError, match="nvcc is missing"):
            library.build(tmp_path / "libops.so", "sm_90")
