"""CUDA graphs: the model of one, the last puzzle's cases, the picture of peaks."""

from __future__ import annotations

import re

import pytest
import torch

from lessons.n05_cuda_graphs_and_memory import pictures, puzzles, recorded
from lessons.n05_cuda_graphs_and_memory.graph_capture import capture


def test_a_replay_reads_what_lies_at_the_addresses_now():
    buffer, weight = torch.zeros(3), torch.ones(3)

    def work(x):
        weight.add_(x)
        return (2 * x + 1)[:2].relu()

    graph, out = capture(work, buffer)
    assert out.isnan().all()
    assert weight.tolist() == [1, 1, 1]  # capturing computes nothing
    buffer.copy_(torch.tensor([1.0, -2, 3]))
    graph.replay()
    assert out.tolist() == [3, 0]
    assert weight.tolist() == [2, -1, 4]
    buffer.data = torch.zeros(3)  # other memory, which the graph does not know
    graph.replay()
    assert weight.tolist() == [3, -3, 7]
    assert graph.replays == 2


def test_a_number_of_python_is_the_one_that_was_captured():
    rate, buffer = [2.0], torch.ones(2)
    graph, out = capture(lambda x: rate[0] * x, buffer)
    rate[0] = 7.0
    graph.replay()
    assert out.tolist() == [2, 2]


@pytest.mark.parametrize("read", [lambda x: x * x.sum().item(), lambda x: x[x > 0], lambda x: x if x.any() else -x])
def test_the_host_reads_nothing_while_capturing(read):
    with pytest.raises(RuntimeError, match="the host reads a value"):
        capture(read, torch.ones(2))


def test_the_first_case_of_the_last_puzzle_is_step_15():
    (launches, launch_us, kernels_us, *_), _ = next(iter(puzzles.SITUATIONS.values()))
    step = recorded.step("15_full_sgd_fused")
    assert launches == step["launches"]
    assert launch_us == pytest.approx(recorded.launch_us("15_full_sgd_fused"), abs=0.05)
    assert kernels_us == pytest.approx(1e3 * step["busy_ms"], abs=5)


def test_a_hint_of_the_last_puzzle_says_what_either_side_takes():
    for values, hint in puzzles.SITUATIONS.values():
        eager, graph = (float(µs) for µs in re.findall(r"(\d+) µs", hint)[:2])
        assert eager - graph == pytest.approx(puzzles.saved(*values), abs=0.5)


def test_the_picture_of_peaks_shows_no_times():
    plt = pytest.importorskip("matplotlib.pyplot")
    figure = pictures.peaks()
    assert [ax.get_xlabel() for ax in figure.axes] == ["MB"] * 3
    plt.close(figure)
