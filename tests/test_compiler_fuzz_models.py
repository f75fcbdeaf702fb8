"""backend="fused_kernels" and whole DLRMs put together at random: outputs and gradients are eager's, whatever is
replaced."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from compiled import FUZZ, check, results_of
from compiled_models import Model, Recipe, Two, inputs, programs
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")


def replaced(
    recipes: tuple[Recipe, ...], how: str, rows: int, ragged: bool, gradients: bool, dynamic: bool, inner: str
) -> list[str]:
    """Check a program; its ops. Outputs are checked where eager has no gradient (of what was written to, say);
    what it does not run at all is "refused"."""
    torch.manual_seed(0)
    model = Model(recipes[0]) if how == "one" else Two(recipes[0], recipes[-1], how)
    arguments = inputs(recipes, rows, ragged)

    def runs(gradients: bool) -> bool:
        tried = copy.deepcopy(model)
        try:
            results_of(tried, tried, arguments, gradients)
        except RuntimeError:
            return False
        return True

    if not runs(gradients=False):
        return ["refused"]
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    return check(model, arguments, gradients and runs(True), inner, dynamic=dynamic, **tolerance).ops or ["nothing"]


def fuzzed(count: int, number: int) -> Counter:
    """Check the `count` programs of a seed; how many had each op."""
    counts = Counter()

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        program=programs(), rows=st.integers(0, 4), ragged=st.booleans(), gradients=st.booleans(),
        dynamic=st.booleans(), inner=st.sampled_from(["eager"] * 3 + ["aot_eager"]),
    )  # fmt: skip
    def one(program, **how_run):
        counts.update({*replaced(*program, **how_run)})

    one()
    return counts


def test_random_models():
    assert fuzzed(12, 0)["fused_mlp"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 1 + FUZZ))
def test_more_random_models(number):
    """Some are whole models, some have each of the parts; and eager refuses few."""
    counts = fuzzed(125, number)
    assert {"dlrm_forward", "fused_mlp", "dot_interaction", "embedding_bags_apart"} <= {*counts}
    assert counts["refused"] < 30
