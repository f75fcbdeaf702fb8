"""model.train with the fused kernels: eager's losses, its checkpoints both ways, and what a user sees of mistakes."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("loguru")
from train_runs import assert_same, assert_same_end, command, interrupt_after, interrupted, mini, run, status, table

import kernels
from data.cli import UserError
from data.dataset import write_dataset
from kernels import runtime
from model import DLRM, Hash, Preset, optimizers, preset
from model import train as training
from model.checkpoints import load_checkpoint
from model.config import Kernels, Optimizer, TableOptimizer
from model.optimizers import CapturableAdagrad, CapturableSGD, make_optimizer
from model.step import train_step
from model.tables import FusedTables

pytestmark = pytest.mark.usefixtures("one_thread")
FUSED = [TableOptimizer.SGD, TableOptimizer.ADAGRAD, TableOptimizer.ROWWISE_ADAGRAD]
BOTH = FUSED[:2]  # the rules that eager training has too
LONG = {"epochs": 27, "table_learning_rate": 0.1, "learning_rate": 3e-3}  # 27 × 19 = 513 steps


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("fused") / "data"
    write_dataset([lambda: table(700)], out)  # 600, 50 and 50 rows
    return out


def fused(rule: TableOptimizer = TableOptimizer.ADAGRAD, hash: Hash = Hash.MODULUS, **settings):
    return mini(hash, Kernels.FUSED, table_optimizer=rule, **settings)


# Against eager


@pytest.mark.parametrize("rule", BOTH)
def test_500_steps_are_those_of_eager(data, tmp_path, rule):
    theirs = run(tmp_path / "eager", data, mini(table_optimizer=rule, **LONG))
    ours = run(tmp_path / "fused", data, fused(rule, **LONG))
    assert len(ours.losses) > 500
    assert abs(theirs.losses[:19].mean() - theirs.losses[-19:].mean()) > 0.01  # or this test shows little
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=0, atol=1e-4)
    for split in ours.metrics:
        assert ours.metrics[split].log_loss == pytest.approx(theirs.metrics[split].log_loss, abs=1e-4)


class RowwiseAdagrad:
    """The rule on dense gradients of the tables, row by row as its formula says: the reference for what eager lacks."""

    def __init__(self, weight: torch.Tensor, lr: float):
        self.weight, self.lr, self.sums = weight, lr, torch.zeros(len(weight))

    @torch.no_grad()
    def step(self) -> None:
        gradient = self.weight.grad.to_dense()
        self.sums += gradient.square().mean(1)
        touched = gradient.abs().sum(1) > 0
        self.weight[touched] -= self.lr * gradient[touched] / (self.sums[touched].sqrt() + 1e-10).unsqueeze(1)
        self.weight.grad = None


def test_500_steps_of_rowwise_adagrad_are_those_of_its_formula():
    shape = replace(preset("mini").model, cardinalities=(10, 20, 30))
    settings = fused(TableOptimizer.ROWWISE_ADAGRAD, optimizer=Optimizer.SGD, table_learning_rate=0.1).train
    torch.manual_seed(0)
    theirs = DLRM(shape)
    ours = DLRM(replace(shape, kernels=Kernels.FUSED))
    ours.load_state_dict(theirs.state_dict())
    optimizer = make_optimizer(ours, Preset(ours.config, settings))
    mlps = [p for name, p in theirs.named_parameters() if "tables" not in name]
    plain = torch.optim.SGD(mlps, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    tables = RowwiseAdagrad(theirs.sparse_arch.tables.weight, 0.1)
    losses = []
    for _ in range(500):
        dense, sparse = torch.randn(16, 13), torch.randint(0, 40, (16, 3))
        labels = (sparse[:, 0] % 2).float()
        loss = F.binary_cross_entropy_with_logits(theirs(dense, sparse), labels)
        plain.zero_grad()
        loss.backward()
        plain.step()
        tables.step()
        losses.append((loss.item(), train_step(ours, optimizer, labels, dense, sparse).item()))
    curves = np.array(losses)
    np.testing.assert_allclose(curves[:, 1], curves[:, 0], rtol=0, atol=1e-4)
    assert curves[-50:].mean() < curves[:50].mean() - 0.05
    torch.testing.assert_close(optimizer.parts["tables"].state["sum"], tables.sums)


@pytest.mark.parametrize("hash", Hash)
def test_one_id_and_bags_give_eagers_logits(hash):
    """The same state_dict, the same draws, the same results: in inference and with gradients."""
    shape = replace(preset("mini").model, cardinalities=(10, 3, 7), hash=hash)
    vocabularies = [torch.arange(100, 100 + n) for n in shape.cardinalities]
    models = []
    for kind in Kernels:
        torch.manual_seed(0)
        models.append(DLRM(replace(shape, kernels=kind), vocabularies))
    eager, ours = models
    assert_same(dict(ours.state_dict()), dict(eager.state_dict()))
    dense, ids = torch.randn(5, 13), torch.randint(98, 112, (5, 3))
    bags, offsets = torch.randint(98, 112, (20,)), torch.tensor([0, 0, 3, 4, 4, 6, 9, 9, 9, 12, 13, 14, 14, 15, 18, 20])
    for inputs in ((dense, ids), (dense, bags, offsets), (dense[:0], ids[:0]), (dense, bags[:0], 0 * offsets)):
        torch.testing.assert_close(ours(*inputs), eager(*inputs))
        torch.testing.assert_close(ours.predict(*inputs), eager.predict(*inputs))


def test_bags_are_trained_too():
    """A step on bags is the same as eager's: the gradient of a bag is that of each of its rows."""
    shape = replace(preset("mini").model, cardinalities=(10, 3, 7))
    bags, offsets = torch.randint(-1, 12, (20,)), torch.tensor([0, 0, 3, 4, 4, 6, 9, 9, 12, 20])
    dense, labels, after = torch.randn(3, 13), torch.tensor([0.0, 1.0, 1.0]), []
    for kind in Kernels:
        torch.manual_seed(0)
        model = DLRM(replace(shape, kernels=kind))
        optimizer = make_optimizer(model, Preset(model.config, preset("mini").train))
        for _ in range(3):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(dense, bags, offsets), labels).backward()
            optimizer.step()
        after.append(dict(model.state_dict()))
    torch.testing.assert_close(*after)


def test_tables_have_no_gradient():
    model = DLRM(replace(preset("mini").model, kernels=Kernels.FUSED))
    optimizer = make_optimizer(model, Preset(model.config))
    tables = model.sparse_arch.tables
    assert isinstance(tables, FusedTables)
    dense, ids = torch.randn(4, 13), torch.randint(0, 40, (4, 3))
    before = tables.weight.clone()
    model(dense, ids).sum().backward()
    optimizer.zero_grad()
    optimizer.step()  # as torch.optim's, where there is no gradient
    assert torch.equal(tables.weight, before)
    model(dense, ids).sum().backward()
    optimizer.step()
    assert tables.weight.grad is None
    assert not tables.looked_up
    assert not torch.equal(tables.weight, before)
    with pytest.raises(ValueError, match="rule: expected sgd, adagrad or rowwise_adagrad, got adam"):
        training.make_optimizer(model, Preset(replace(model.config, kernels="eager", sparse_gradients=False),
                                              replace(preset("mini").train, table_optimizer="adam")))


def test_separate_tables_load_batched_ones_and_the_reverse():
    """A state_dict of nn.Embedding tables fits a model with fused kernels, and the other way round."""
    shape = preset("mini").model
    separate = DLRM(replace(shape, sparse_gradients=False))
    ours = DLRM(replace(shape, kernels=Kernels.FUSED))
    ours.load_state_dict(separate.state_dict())
    again = DLRM(replace(shape, sparse_gradients=False))
    again.load_state_dict(ours.state_dict())
    assert_same(dict(again.state_dict()), dict(separate.state_dict()))
    assert "sparse_arch.tables.0.weight" in separate.state_dict()
    assert "sparse_arch.tables.weight" in ours.state_dict()
    dense, ids = torch.randn(4, 13), torch.randint(0, 40, (4, 3))
    torch.testing.assert_close(ours.predict(dense, ids), separate.predict(dense, ids))
    other = DLRM(replace(shape, cardinalities=(10, 20, 31), sparse_gradients=False))
    with pytest.raises(RuntimeError, match="sparse_arch"):
        other.load_state_dict(ours.state_dict())


def test_bf16_looks_up_float32(data, tmp_path):
    expected = run(tmp_path / "a", data, mini(precision="bf16", epochs=1))
    result = run(tmp_path / "b", data, fused(precision="bf16", epochs=1))
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-4)


def test_compiled_training_with_fused_kernels(data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    result = run(tmp_path / "compiled", data, fused(epochs=1), compile=True)
    expected = run(tmp_path / "eager", data, fused(epochs=1))
    np.testing.assert_allclose(result.losses, expected.losses, rtol=1e-4)


# Checkpoints


@pytest.mark.parametrize("optimizer", list(Optimizer))
@pytest.mark.parametrize("rule", FUSED)
def test_resume_in_mid_epoch_ends_bit_identical(data, tmp_path, monkeypatch, rule, optimizer):
    config = fused(rule, optimizer=optimizer, epochs=2, warmup_steps=25)
    expected = run(tmp_path / "whole", data, config)
    interrupt_after(monkeypatch, 19 + 2)
    interrupted(tmp_path / "parts", data, config)
    torch.manual_seed(1234)
    result = run(tmp_path / "parts", data, config, resume=True)
    assert_same_end(tmp_path / "parts", result, tmp_path / "whole", expected)


@pytest.mark.parametrize("begins", Kernels)
@pytest.mark.parametrize("rule", BOTH)
def test_a_run_begun_with_one_goes_on_with_the_other(data, tmp_path, monkeypatch, rule, begins):
    """In the middle of an epoch and of the warm-up; the losses are those of one eager run."""
    make = {Kernels.EAGER: partial(mini, table_optimizer=rule), Kernels.FUSED: partial(fused, rule)}
    settings = {"warmup_steps": 40, "optimizer": "adagrad"}
    (ends,) = set(Kernels) - {begins}
    expected = run(tmp_path / "whole", data, make[Kernels.EAGER](**settings))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 19 + 7)
        interrupted(tmp_path / "parts", data, make[begins](**settings))
    result = run(tmp_path / "parts", data, make[ends](**settings), resume=True)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-5)
    ours, theirs = (load_checkpoint(tmp_path / name / "last.pt") for name in ("parts", "whole"))
    assert ours["parameters"].keys() == theirs["parameters"].keys()
    torch.testing.assert_close(ours["optimizer"]["tables"]["state"], theirs["optimizer"]["tables"]["state"])
    for part in ("mlps", "tables"):
        rates = [state["optimizer"][part]["param_groups"][0]["lr"] for state in (ours, theirs)]
        assert rates[0] == rates[1]
        assert isinstance(rates[0], float)


def test_another_rules_checkpoint_is_refused(data, tmp_path, capsys):
    run(tmp_path, data, fused(epochs=1))
    options = ["--kernels", "fused", "--table-optimizer", "rowwise_adagrad", "--resume"]
    assert status(command(tmp_path, data, *options)) == 2
    says = "table_optimizer: checkpoint has adagrad, this run rowwise_adagrad"
    assert says in capsys.readouterr().err.splitlines()[-1]


# Rates and steps on the device, as a captured step has them; here uncaptured, and on the CPU


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_capturable_adagrad_is_torchs(weight_decay):
    """With an eps that shows whether it stands under the root."""
    torch.manual_seed(0)
    theirs, ours = ([torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)), torch.nn.Parameter(torch.ones(4))]
                    for _ in range(2))
    adagrad = torch.optim.Adagrad(theirs, lr=0.1, weight_decay=weight_decay, foreach=True)
    capturable = CapturableAdagrad(ours, lr=torch.tensor(0.1), weight_decay=weight_decay)
    for optimizer in (adagrad, capturable):
        optimizer.param_groups[0]["eps"] = 1e-2
    for step in range(20):
        adagrad.param_groups[0]["lr"] = 0.1 / (1 + step)
        capturable.param_groups[0]["lr"].fill_(0.1 / (1 + step))
        for a, b in zip(theirs, ours, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        adagrad.step()
        capturable.step()
        for a, b in zip(theirs, ours, strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=0)
    assert_same(capturable.state_dict()["state"], adagrad.state_dict()["state"])


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_capturable_sgd_is_torchs(weight_decay):
    torch.manual_seed(0)
    theirs, ours = ([torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)), torch.nn.Parameter(torch.ones(4)),
                     torch.nn.Parameter(torch.ones(2))] for _ in range(2))
    sgd = torch.optim.SGD(theirs, lr=0.1, weight_decay=weight_decay)
    capturable = CapturableSGD(ours, lr=torch.tensor(0.1), weight_decay=weight_decay)
    for step in range(20):
        sgd.param_groups[0]["lr"] = 0.1 / (1 + step)
        capturable.param_groups[0]["lr"].fill_(0.1 / (1 + step))
        for a, b in zip(theirs[:2], ours[:2], strict=True):  # the last has no gradient
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        sgd.step()
        capturable.step()
        for a, b in zip(theirs, ours, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-7)


def test_capturable_sgd_is_for_few_tensors():
    few, many = ([torch.nn.Parameter(torch.ones(2)) for _ in range(number)] for number in (4, 5))
    make = partial(optimizers._capturable_optimizer, Optimizer.SGD, lr=0.1)
    assert [type(make(parameters)) for parameters in (few, many)] == [CapturableSGD, torch.optim.SGD]
    with pytest.raises(TypeError, match="momentum"):
        CapturableSGD(few, lr=torch.tensor(0.1), momentum=0.9)


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_capturable_optimizers_warm_up_and_save_as_the_plain_ones(data, tmp_path, monkeypatch, optimizer):
    config = fused(optimizer=optimizer, warmup_steps=30)
    expected = run(tmp_path / "plain", data, config)
    plain = training.make_optimizer
    monkeypatch.setattr(training, "make_optimizer", lambda model, preset, _: plain(model, preset, True))
    interrupt_after(monkeypatch, 19 + 7)
    interrupted(tmp_path / "parts", data, config)
    result = run(tmp_path / "parts", data, config, resume=True)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-5)
    monkeypatch.undo()
    # And what they wrote the plain ones read.
    longer = replace(config, train=replace(config.train, epochs=4))
    result = run(tmp_path / "parts", data, longer, resume=True)
    expected = run(tmp_path / "plain", data, longer, resume=True)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-5)


def test_without_deterministic_rows_are_added_to_in_any_order(data, tmp_path, monkeypatch):
    """It goes on from a checkpoint of the other kind, too: the step is the same but for rounding."""
    deterministic, update_rows = [], kernels.embedding_bags_sgd_

    def noted(*arguments, **named):
        deterministic.append(named["deterministic"])
        return update_rows(*arguments, **named)

    monkeypatch.setattr(kernels, "embedding_bags_sgd_", noted)
    configs = [fused(TableOptimizer.SGD, epochs=1, deterministic=choice) for choice in (True, False)]
    expected, result = (run(tmp_path / str(i), data, config) for i, config in enumerate(configs))
    assert deterministic == [True] * len(expected.losses) + [False] * len(result.losses)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-6)
    both = (run(tmp_path / str(i), data, replace(config, train=replace(config.train, epochs=2)), resume=True)
            for i, config in enumerate(reversed(configs)))
    expected, result = both
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-6)


def test_without_fused_kernels_nothing_is_capturable():
    with pytest.raises(ValueError, match="capturable: expected False without fused kernels, got True"):
        make_optimizer(DLRM(preset("mini").model), preset("mini"), capturable=True)


# Mistakes


def test_a_bad_row_during_training_is_named(data, tmp_path, monkeypatch):
    """A table with fewer rows than its hash gives: feature, position and id are said, and no checkpoint is written."""
    prepare = training._prepare

    def spoiled(*args):
        batches, begun = prepare(*args)
        begun.model.sparse_arch.tables.row_offsets[2] -= 3
        return batches, begun

    monkeypatch.setattr(training, "_prepare", spoiled)
    with pytest.raises(IndexError, match=r"id \d+ of feature 1, at position \d+ of indices, is out of range"):
        run(tmp_path, data, fused(epochs=1))
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--table-optimizer", "rowwise_adagrad"], "rowwise_adagrad is one of the fused kernels; add --kernels fused"),
        (["--optimizer", "rowwise_adagrad"], "expected one of sgd, adagrad, adam, got 'rowwise_adagrad'"),
        (["--kernels", "fused", "--table-optimizer", "adam"], "kernels: fused has no adam for tables; use "),
        (["--kernels", "fused", "--no-sparse-gradients"], "kernels: fused makes no gradient of a table; leave "),
        (["--no-deterministic"], "deterministic: only the fused kernels' sgd of tables has another way; leave "),
        (["--no-deterministic", "--kernels", "fused"], "or use --kernels fused --table-optimizer sgd"),
        (["--kernels", "quick"], "expected one of eager, fused, got 'quick'"),
        (["--cuda-graph"], "--cuda-graph: a sparse gradient's size is not known beforehand; add --kernels fused"),
        (["--cuda-graph", "--kernels", "fused"], "--cuda-graph: needs an NVIDIA GPU, this is the cpu"),
        (["--cuda-graph", "--kernels", "fused", "--hash", "index_naive"], "copies from the host in every step"),
    ],
)
def test_mistakes_are_one_line_and_status_2(data, tmp_path, capsys, options, says):
    assert status(command(tmp_path / "run", data, "--epochs", "1", *options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err


def test_the_command_trains_with_fused_kernels(data, tmp_path, capsys):
    printed = []
    for kind in Kernels:
        assert status(command(tmp_path / kind, data, "--epochs", "2", "--kernels", kind)) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""
    with pytest.raises(UserError, match="fused has no adam"):
        Preset(replace(preset("mini").model, kernels="fused"), replace(preset("mini").train, table_optimizer="adam"))


# The kernels themselves


def with_backend(function, backend: str):
    return lambda *arguments, **options: function(*arguments, **options | {"backend": backend})


@pytest.mark.parametrize("rule", FUSED)
def test_the_triton_kernels_train_as_eager(monkeypatch, rule):
    """In the interpreter: the arguments that training gives, a gradient that is a view of a larger one among them."""
    if runtime.why_not("triton", "cpu"):
        pytest.skip("Triton's interpreter is off")
    losses = []
    for backend in ("eager", "triton"):
        with monkeypatch.context() as patch:
            for name in ("embedding_bags", *(f"embedding_bags_{rule}_" for rule in FUSED)):
                patch.setattr(kernels, name, with_backend(getattr(kernels, name), backend))
            torch.manual_seed(0)
            model = DLRM(replace(preset("mini").model, kernels=Kernels.FUSED))
            optimizer = make_optimizer(model, Preset(model.config, fused(rule).train))
            for _ in range(4):
                dense, sparse = torch.randn(6, 13), torch.randint(0, 40, (6, 3))
                losses.append(train_step(model, optimizer, (sparse[:, 0] % 2).float(), dense, sparse))
    torch.testing.assert_close(torch.stack(losses[4:]), torch.stack(losses[:4]))
