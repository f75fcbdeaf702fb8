"""What a model and its training consist of: frozen dataclasses, the presets, and their command-line options."""

import argparse
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated

import numpy as np

from data.cli import UserError
from model.hashing import Hash

if typing.TYPE_CHECKING:
    from data.metadata import Feature


class Interaction(StrEnum):
    """How the dense vector and the F embeddings, each D wide, meet before the top MLP."""

    DOT = "dot"  # D + F (F + 1) / 2 features
    FM = "fm"  # 2 D features
    CAT = "cat"  # (F + 1) D features
    OUTER = "outer"  # ((F + 1) D)² features


class Optimizer(StrEnum):
    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAM = "adam"


class TableOptimizer(StrEnum):
    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAM = "adam"
    ROWWISE_ADAGRAD = "rowwise_adagrad"  # Adagrad with one sum of squares a row, their mean over its D columns


class Kernels(StrEnum):
    """What computes the layers, and looks up and updates the rows of the embedding tables."""

    EAGER = "eager"  # PyTorch's operations
    # kernels.embedding_bags, and its backward and update in one, so that a table has no gradient tensor; the MLPs and
    # the interaction as model.fused has them.
    FUSED = "fused"


class Precision(StrEnum):
    """What matrix products compute in; weights, gradients and the optimizers' state are float32 in each."""

    FP32 = "fp32"
    TF32 = "tf32"  # float32 in memory, 10 bits of mantissa in the products (NVIDIA GPUs from Ampere on)
    BF16 = "bf16"  # torch.autocast


def _require(holds: bool, config, name: str, expected: str) -> None:
    if not holds:
        raise UserError(f"{name}: expected {expected}, got {_show(getattr(config, name))}")


def _show(value) -> str:
    return ("-".join(map(str, value)) or "nothing") if isinstance(value, tuple) else repr(value)


def _is_tuple(kind) -> bool:
    return typing.get_origin(kind) is tuple


def _convert(config) -> None:
    """Bring each field to its declared type (plain values, from JSON say, will do); UserError names the field."""
    for name, kind in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        try:
            object.__setattr__(config, name, _cast(value, kind))
        except (TypeError, ValueError):
            raise UserError(f"{name}: expected {_describe(kind)}, got {value!r}") from None


def _cast(value, kind):
    if _is_tuple(kind):
        if isinstance(value, str):
            raise TypeError
        return tuple(_cast(item, int) for item in value)
    if kind in (bool, int) and (isinstance(value, bool) != (kind is bool) or value != kind(value)):
        raise TypeError
    if kind is float and (isinstance(value, bool) or not math.isfinite(value)):
        raise ValueError
    return kind(value)


def _describe(kind) -> str:
    if _is_tuple(kind):
        return "whole numbers joined by '-', as in 13-32-16"
    if issubclass(kind, StrEnum):
        return f"one of {', '.join(kind)}"
    return {int: "a whole number", float: "a finite number", bool: "True or False"}[kind]


WIDEST = 1 << 24  # of a layer: what is beyond it fits no machine, and its product with another overflows


@dataclass(frozen=True)
class DLRMConfig:
    """The shape of a DLRM. UserError, naming the field, for values that make no model.

    A field's annotation carries its help text for the command line.
    """

    bottom: Annotated[tuple[int, ...], "bottom MLP: dense features, hidden widths, embedding width"] = (13, 32, 16)
    embedding_dim: Annotated[int, "width of an embedding"] = 16
    top: Annotated[tuple[int, ...], "top MLP: hidden widths, 1; its input is what the interaction gives"] = (32, 1)
    interaction: Annotated[Interaction, "how dense vector and embeddings meet"] = Interaction.DOT
    hash: Annotated[Hash, "how an id becomes a row"] = Hash.MODULUS
    cardinalities: Annotated[tuple[int, ...], "known ids of each sparse feature (default: the metadata's)"] = ()
    sparse_gradients: Annotated[bool, "update only the table rows that a batch uses (tables: sgd, adagrad)"] = True

    kernels: Annotated[Kernels, "what computes the layers, and looks up and updates the tables"] = Kernels.EAGER

    def __post_init__(self):
        _convert(self)
        _require(len(self.bottom) >= 2, self, "bottom", "at least 2 widths")
        for name in ("bottom", "top"):
            widths = getattr(self, name)
            _require(all(0 < width <= WIDEST for width in widths), self, name, f"widths from 1 to {WIDEST:,}")
        _require(self.embedding_dim > 0, self, "embedding_dim", "a positive width")
        width_fits = self.bottom[-1] == self.embedding_dim
        _require(width_fits, self, "bottom", f"to end in embedding_dim, {self.embedding_dim}")
        _require(len(self.top) >= 1 and self.top[-1] == 1, self, "top", "to end in 1, the logit")
        _require(min(self.cardinalities, default=0) >= 0, self, "cardinalities", "numbers from 0")

    def with_metadata(self, features: "Mapping[str, Feature]") -> "DLRMConfig":
        """This config with one cardinality for each sparse feature of `data.metadata.read_metadata`.

        A config that brings its own cardinalities keeps them: it uses the first features with their most frequent ids
        (fewer where a feature has fewer).
        """
        available = [feature.cardinality for feature in features.values()]
        _require(len(self.cardinalities) <= len(available), self, "cardinalities", f"at most {len(available)} numbers")
        own = self.cardinalities or available
        return replace(self, cardinalities=tuple(map(min, own, available)))

    def vocabularies(self, features: "Mapping[str, Feature]") -> list[np.ndarray]:
        """The known ids of each table, int64 [cardinality], most frequent first: what `DLRM` takes."""
        return [
            feature.tokenizer_values[:cardinality]
            for feature, cardinality in zip(features.values(), self.cardinalities, strict=False)
        ]


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. UserError, naming the field, for values that cannot be."""

    optimizer: Annotated[Optimizer, "update rule of the MLPs"] = Optimizer.ADAM
    learning_rate: Annotated[float, "step size of the MLPs"] = 3e-3
    table_optimizer: Annotated[TableOptimizer, "update rule of the embedding tables"] = TableOptimizer.ADAGRAD
    table_learning_rate: Annotated[float, "step size of the embedding tables"] = 2e-2
    weight_decay: Annotated[float, "L2 penalty of the MLPs, added to the gradient"] = 1e-5
    warmup_steps: Annotated[int, "steps in which both step sizes rise from 0, linearly"] = 0
    decay_start_step: Annotated[int, "step after which both step sizes fall"] = 0
    decay_steps: Annotated[int, "steps in which they fall, as the square of what is left; 0: never"] = 0
    precision: Annotated[Precision, "of matrix products"] = Precision.FP32
    batch_size: Annotated[int, "rows a step"] = 64
    epochs: Annotated[int, "passes over the training split"] = 2
    patience: Annotated[int, "stop after this many epochs without a better validation log loss; 0: never"] = 1
    checkpoint_every: Annotated[int, "write last.pt after this many steps too; 0: at an epoch's end only"] = 0
    eval_every: Annotated[int, "evaluate on validation after this many steps too; 0: at an epoch's end only"] = 0
    eval_batch_size: Annotated[int, "rows at a time in evaluation"] = 4096
    seed: Annotated[int, "seed of the initial weights and of the shuffling"] = 0
    # At small's sizes sharing an operation costs more than it saves, and far more where another process has the core.
    threads: Annotated[int, "CPU threads an operation may use; 0: torch's default"] = 1
    deterministic: Annotated[
        bool, "add the gradients of a row in a fixed order; in any order (fused, tables: sgd) no two runs are the same"
    ] = True

    def __post_init__(self):
        _convert(self)
        for name in ("learning_rate", "table_learning_rate", "batch_size", "epochs", "eval_batch_size"):
            _require(getattr(self, name) > 0, self, name, "a positive number")
        for name in ("weight_decay", "warmup_steps", "decay_start_step", "decay_steps", "patience", "checkpoint_every",
                     "eval_every", "threads"):
            _require(getattr(self, name) >= 0, self, name, "a number from 0")
        if self.decay_steps:
            begins = self.decay_start_step >= self.warmup_steps
            _require(begins, self, "decay_start_step", f"a step from warmup_steps on, {self.warmup_steps}")
        _require(self.threads < 1 << 15, self, "threads", f"a number below {1 << 15:,}")
        _require(0 <= self.seed < 1 << 63, self, "seed", "a number from 0 to 2^63 - 1")


@dataclass(frozen=True)
class Preset:
    """A model and how it is trained."""

    model: DLRMConfig = DLRMConfig()
    train: TrainConfig = TrainConfig()

    def __post_init__(self):
        rule = self.train.table_optimizer
        if self.model.kernels is Kernels.FUSED:
            if rule is TableOptimizer.ADAM:
                raise UserError(
                    "kernels: fused has no adam for tables; use --table-optimizer sgd, adagrad or rowwise_adagrad"
                )
            if not self.model.sparse_gradients:
                raise UserError("kernels: fused makes no gradient of a table; leave --no-sparse-gradients out")
        elif rule is TableOptimizer.ROWWISE_ADAGRAD:
            raise UserError("table_optimizer: rowwise_adagrad is one of the fused kernels; add --kernels fused")
        if not self.train.deterministic and (self.model.kernels, rule) != (Kernels.FUSED, TableOptimizer.SGD):
            raise UserError(
                "deterministic: only the fused kernels' sgd of tables has another way; leave --no-deterministic out, "
                "or use --kernels fused --table-optimizer sgd"
            )
        if self.model.sparse_gradients and rule is TableOptimizer.ADAM:
            raise UserError(
                "table_optimizer: adam does not take sparse gradients; use --table-optimizer adagrad or sgd, "
                "or --no-sparse-gradients, which updates every row of every table in every step"
            )


PRESETS: Mapping[str, Preset] = {
    "small": Preset(),
    "main": Preset(
        DLRMConfig(bottom=(13, 512, 256, 64, 16), top=(512, 256, 1)),
        TrainConfig(learning_rate=1e-3, batch_size=2048, threads=0),
    ),
    "mini": Preset(DLRMConfig(bottom=(13, 8, 4), embedding_dim=4, top=(8, 1), cardinalities=(10, 20, 30))),
    # What MLPerf's first reference for DLRM trains, on Criteo's Terabyte log: bench/run_and_time.sh in
    # https://github.com/facebookresearch/dlrm (--learning-rate=1.0 --mini-batch-size=2048
    # --test-mini-batch-size=16384; plain SGD, with sparse gradients, and one epoch are its defaults). It takes ids
    # modulo --max-ind-range=40000000 and gives each result a row, which is data.preprocess --hash-size 40000000 and the
    # hash sorted here.
    "mlperf": Preset(
        DLRMConfig((13, 512, 256, 128), embedding_dim=128, top=(1024, 1024, 512, 256, 1), hash=Hash.SORTED),
        TrainConfig(
            optimizer=Optimizer.SGD, learning_rate=1.0, table_optimizer=TableOptimizer.SGD, table_learning_rate=1.0,
            weight_decay=0.0, batch_size=2048, epochs=1, eval_batch_size=16384, threads=0,
        ),
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name; UserError lists the names there are."""
    if name not in PRESETS:
        raise UserError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --preset, and one option for each field of `DLRMConfig` and `TrainConfig`: --bottom 13-32-16, --seed 1, …"""
    parser.add_argument("--preset", default="small", metavar="NAME", help=", ".join(PRESETS))
    for config in (DLRMConfig, TrainConfig):
        group = parser.add_argument_group(config.__name__, "These override the preset.")
        for name, annotation in typing.get_type_hints(config, include_extras=True).items():
            kind, text = typing.get_args(annotation)
            flag = "--" + name.replace("_", "-")
            if kind is bool:
                group.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=text)
                continue
            values = f" ({', '.join(kind)})" if isinstance(kind, type) and issubclass(kind, StrEnum) else ""
            metavar = "N-N-…" if _is_tuple(kind) else "NAME" if values else "N"
            group.add_argument(
                flag, dest=name, type=_argument(lambda text, kind=kind: _parse(text, kind)), metavar=metavar,
                help=text + values,
            )


def from_arguments(args: argparse.Namespace, parser: argparse.ArgumentParser | None = None) -> Preset:
    """The preset that parsed options describe.

    An unknown preset and values that do not fit together (--bottom 13-32 --embedding-dim 16) are `parser.error` if a
    parser is given, else a UserError.
    """
    try:
        base = preset(args.preset)
        return Preset(
            *(
                replace(part, **{f.name: v for f in fields(part) if (v := getattr(args, f.name)) is not None})
                for part in (base.model, base.train)
            )
        )
    except UserError as error:
        if parser is None:
            raise
        parser.error(str(error))


def _parse(text: str, kind):
    try:
        if _is_tuple(kind):
            return tuple(int(part) for part in text.split("-"))
        return kind(text)
    except ValueError:
        raise ValueError(f"expected {_describe(kind)}, got {text!r}") from None


def _argument(parse):
    """argparse shows the text of an ArgumentTypeError, and hides that of a ValueError."""

    def convert(text: str):
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
