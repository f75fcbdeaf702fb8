"""backend="fused_kernels" in a second process: what the first one compiled is found, unless the package has changed."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from torch import fx, nn

from kernels.check import fresh
from kernels.compiler import cache
from kernels.runtime import KERNELS

# A model in training and without gradients, and what AOTAutograd's cache did.
PROGRAM = """
import json, sys
import torch
from torch import nn
from torch._dynamo.utils import counters
import kernels
from kernels.compiler import as_on_gpu, cache
from kernels.ops.fused_mlp import choice
from pathlib import Path

if len(sys.argv) > 1:  # the folder of sources that the key is made of
    cache.runtime = type("runtime", (), {"KERNELS": Path(sys.argv[1]), "PACKAGE": "kernels", "triton_mode": str})
    cache.runtime.triton_mode = staticmethod(kernels.runtime.triton_mode)
choice.is_full_float32 = lambda *_: False
torch.set_num_threads(1)
torch.manual_seed(0)

class Model(nn.Module):
    # Several functions of the package stand in its graph.

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.tables = nn.ParameterList(torch.randn(5, 8) for _ in range(3))

    def forward(self, x):
        ids = (x[:, 0] > 0).long()
        one, two, three = (torch.nn.functional.embedding(ids, table) for table in self.tables)
        t = torch.stack([self.layers(x), one, two, three], 1)
        i, j = torch.triu_indices(4, 4, 1)
        return one * two * torch.bmm(t, t.transpose(1, 2))[:, i, j].sum(1, keepdim=True)

model, x = Model(), torch.randn(4, 8)
compiled = torch.compile(model, backend="fused_kernels")
with as_on_gpu():
    assert len(kernels.explain(model, x).replaced) == 3
    out = compiled(x)
    out.sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), out)
torch.testing.assert_close(out, model(x))
assert not torch._inductor.config.unsafe_marked_cacheable_functions
print(json.dumps({name: counters["aot_autograd"][f"autograd_cache_{name}"] for name in ("hit", "miss", "bypass")}))
"""


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(KERNELS, changed, ignore=shutil.ignore_patterns("__pycache__"))
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def run(*arguments: str) -> dict[str, int]:
        done = fresh.run(PROGRAM, *arguments, imported="kernels, torch._inductor.compile_fx", environment=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run() == {"hit": 0, "miss": 2, "bypass": 0}
    assert run() == {"hit": 2, "miss": 0, "bypass": 0}
    assert run(str(changed)) == {"hit": 2, "miss": 0, "bypass": 0}  # the same text elsewhere
    with (changed / "ops/fused_mlp/eager.py").open("a") as file:
        file.write("# changed\n")
    assert run(str(changed)) == {"hit": 0, "miss": 2, "bypass": 0}


def test_the_key_is_made_of_the_sources_and_of_what_auto_is(tmp_path, monkeypatch):
    (tmp_path / "ops").mkdir()
    source, test = tmp_path / "ops" / "op.py", tmp_path / "ops" / "test_op.py"

    def digest() -> str:
        return cache.digest.__wrapped__(tmp_path)

    seen = []
    for change in (
        lambda: source.write_text("x = 1"), lambda: source.write_text("x = 2"),
        lambda: source.rename(tmp_path / "op.py"), lambda: (tmp_path / "core.cpp").write_text("int x;"),
        lambda: (tmp_path / "kernel.cuh").write_text("int x;"),
    ):  # fmt: skip
        change()
        seen.append(digest())
    assert len({*seen}) == len(seen)
    test.write_text("def test(): ...")
    (tmp_path / "README.md").write_text("words")
    assert digest() == seen[-1]
    before = cache.key()
    assert cache.key() == before
    monkeypatch.setattr(cache.dispatch.find("add_relu"), "auto_on_cpu", "cpp")
    assert cache.key() != before


def test_the_users_own_names_are_kept_and_ours_are_set_while_compiling_alone():
    from torch._inductor import config

    from kernels.compiler.columns import column_of
    from kernels.ops.fused_mlp.op import fused_mlp

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.relu, (graph.call_function(fused_mlp, (x,)),)))
    assert cache.functions_of(graph) == {"kernels.ops.fused_mlp.op.fused_mlp"}
    graph.call_function(column_of, (x, 0))
    with config.patch(unsafe_marked_cacheable_functions={"own.function": "1"}):
        with cache.cacheable(graph):
            named = dict(config.unsafe_marked_cacheable_functions)
        assert config.unsafe_marked_cacheable_functions == {"own.function": "1"}
    ours = {"kernels.ops.fused_mlp.op.fused_mlp", "kernels.compiler.columns.column_of"}
    assert named == {"own.function": "1"} | dict.fromkeys(ours, cache.key())
    assert list(named) == ["own.function", *sorted(ours)]  # in one order in all processes: torch's key has it
    with cache.cacheable(fx.symbolic_trace(nn.Linear(2, 2)).graph):
        assert config.unsafe_marked_cacheable_functions == {}
