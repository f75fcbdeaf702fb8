"""The models whose cost is estimated: this repository's presets, and what MLPerf trains."""

from dataclasses import dataclass, replace
from itertools import pairwise

from data.cli import UserError
from data.synthetic import FULL, SyntheticConfig
from model.config import PRESETS, Interaction, Precision, TableOptimizer, preset
from model.describe import summarize
from model.dlrm import DLRM
from model.hashing import Hash

# The tables of MLPerf's DLRM-DCNv2, the ids a row that each takes, and the shape of its dense part:
# https://github.com/mlcommons/training/tree/master/recommendation_v2/torchrec_dlrm, README, "Running the MLPerf DLRM v2
# benchmark" (--num_embeddings_per_feature, --multi_hot_sizes, --dense_arch_layer_sizes, --over_arch_layer_sizes,
# --dcn_num_layers, --dcn_low_rank_dim, GLOBAL_BATCH_SIZE, --adagrad).
MLPERF_ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976, 14,
    40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)
MLPERF_IDS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
MLPERF_BATCH = 65536
_BOTTOM, _TOP, _LAYERS, _RANK = (13, 512, 256, 128), (1024, 1024, 512, 256, 1), 3, 512


@dataclass(frozen=True)
class Case:
    """A model and its batch.

    rows: of each table. ids: that a row of the batch brings to each table, on the mean.
    dim: numbers of an embedding. parameters: of the dense part. multiply_adds: of the dense part, forward, a row of the
    batch. batch: rows a step, of one GPU where per_gpu, else of all. recorded: the model whose steps on one GPU are
    recorded.
    """

    name: str
    rows: tuple[int, ...]
    ids: tuple[int, ...]
    dim: int
    parameters: int
    multiply_adds: int
    batch: int
    per_gpu: bool = True
    precision: Precision = Precision.FP32
    table_optimizer: TableOptimizer = TableOptimizer.ADAGRAD
    recorded: bool = False

    @property
    def table_bytes(self) -> int:
        """Of all tables, in float32."""
        return 4 * self.dim * sum(self.rows)

    @property
    def has_bags(self) -> bool:
        """Not one id for each table: the ids of a bag go with its length."""
        return set(self.ids) != {1}

    def rows_per_gpu(self, gpus: int) -> int:
        """UserError: the batch cannot be shared out."""
        if self.per_gpu:
            return self.batch
        if self.batch % gpus:
            raise UserError(f"batch: expected a multiple of {gpus}, the number of GPUs, got {self.batch}")
        return self.batch // gpus


def of_preset(name: str, batch: int | None = None, precision: Precision | None = None) -> Case:
    """A preset, its batch that of one GPU. Its tables are those of Criteo's Kaggle file; mlperf's are of the Terabyte
    file, with MLPerf's sizes, and mini brings its own.

    Raises:
        UserError: there is no such preset, or its tables are trained by Adam, which updates every row.
    """
    chosen = preset(name)
    if chosen.train.table_optimizer is TableOptimizer.ADAM:
        raise UserError(f"case: {name} trains its tables by adam; expected sgd, adagrad or rowwise_adagrad")
    known = chosen.model.cardinalities or SyntheticConfig(FULL).cardinalities
    rows = MLPERF_ROWS if name == "mlperf" else tuple(cardinality + 1 for cardinality in known)
    blocks = summarize(DLRM(replace(chosen.model, cardinalities=(1,) * len(rows), hash=Hash.MODULUS)), 1)
    dense = blocks[~blocks["name"].str.startswith("sparse_arch.")]
    return Case(
        name, rows, (1,) * len(rows), chosen.model.embedding_dim, int(dense["parameters"].sum()),
        int(dense["FLOPs"].sum()) // 2, batch or chosen.train.batch_size,
        precision=precision or chosen.train.precision, table_optimizer=chosen.train.table_optimizer,
        recorded=name == "main" and chosen.model.interaction is Interaction.DOT,
    )


def dcnv2(batch: int = MLPERF_BATCH, per_gpu: bool = False, precision: Precision = Precision.TF32) -> Case:
    """MLPerf's DLRM-DCNv2; its batch is of all GPUs.

    Each of its cross layers is x0 (V U x + b) + x, for vectors of (F + 1) D and U and V of 512 rows and columns
    (torchrec's modules/crossnet.py, LowRankCrossNet); the top MLP takes what the last one gives.
    """
    dim = _BOTTOM[-1]
    width = (len(MLPERF_ROWS) + 1) * dim
    pairs = [*pairwise(_BOTTOM), *pairwise((width, *_TOP))]
    weights = sum(a * b for a, b in pairs) + _LAYERS * 2 * width * _RANK
    biases = sum(b for _, b in pairs) + _LAYERS * width
    return Case(
        "dcnv2", MLPERF_ROWS, MLPERF_IDS, dim, weights + biases, weights, batch, per_gpu, precision,
        TableOptimizer.ADAGRAD,
    )


NAMES = (*PRESETS, "dcnv2")


def case(name: str) -> Case:
    """The case of that name; UserError lists the names there are."""
    if name not in NAMES:
        raise UserError(f"case: expected one of {', '.join(NAMES)}, got {name!r}")
    return dcnv2() if name == "dcnv2" else of_preset(name)


def shown() -> list[Case]:
    """What the command shows where nothing else is asked for: each of two models with a small and a large batch."""
    return [
        of_preset("main", precision=Precision.TF32), of_preset("main", 16384),
        dcnv2(), dcnv2(MLPERF_BATCH // 8, per_gpu=True),
    ]
