"""backend="fused_kernels" and torchrec's own DLRM, where torchrec is installed."""

import copy

import pytest
import torch

import kernels
from kernels.compiler.exported import replace_in

pytest.importorskip("torchrec")
from torchrec.models.dlrm import DLRM, DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
FEATURES, WIDTH = [f"f{k}" for k in range(5)], 8
PARTS = ["fused_mlp", "embedding_bags_apart", "dot_interaction", "fused_mlp"]


def model(make=DLRM, **options):
    tables = [
        EmbeddingBagConfig(name=f"of_{name}", embedding_dim=WIDTH, num_embeddings=50 + k, feature_names=[name])
        for k, name in enumerate(FEATURES)
    ]
    return make(
        embedding_bag_collection=EmbeddingBagCollection(tables=tables), dense_in_features=13,
        dense_arch_layer_sizes=[16, WIDTH], over_arch_layer_sizes=[16, 8, 1], **options,
    )


def inputs(rows: int):
    """Up to three ids a bag."""
    lengths = torch.randint(0, 4, (len(FEATURES) * rows,))
    values = torch.randint(0, 50, (int(lengths.sum()),))
    return torch.rand(rows, 13), KeyedJaggedTensor(FEATURES, values, lengths=lengths)


def ops_of(own, arguments) -> list[str]:
    return [replacement.op for replacement in kernels.explain(own, *arguments).replaced]


def test_it_becomes_one_op():
    """Where the offsets of its features are known: computing them, which waits for the GPU, cuts the graph."""
    own, arguments = model(), inputs(4)
    with torch.no_grad():
        assert ops_of(own, arguments) == PARTS
        own(*arguments)  # the KeyedJaggedTensor keeps them
        assert ops_of(own, arguments) == ["dlrm_forward"]
    assert ops_of(own, arguments) == PARTS  # they have gradients


@pytest.mark.parametrize(
    ("make", "options"), [(DLRM, {}), (DLRM_DCN, {"dcn_num_layers": 2, "dcn_low_rank_dim": 4})], ids=["dlrm", "dcn"]
)
def test_it_computes_what_eager_does(make, options):
    torch.manual_seed(0)
    own = model(make, **options)
    other = copy.deepcopy(own)
    compiled = torch.compile(other, backend="fused_kernels")
    with torch.no_grad():
        for rows in (1, 2, 7, 33):
            arguments = inputs(rows)
            for _ in range(2):
                torch.testing.assert_close(compiled(*arguments), own(*arguments))
    arguments = inputs(5)
    for call in (own, compiled):
        call(*arguments).square().sum().backward()
    for one, another in zip(other.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.grad, another.grad)


def test_exported_it_is_one_op():
    class Of(torch.nn.Module):
        """torch.export takes tensors."""

        def __init__(self):
            super().__init__()
            self.own = model().requires_grad_(False)

        def forward(self, dense, values, lengths):
            return self.own(dense, KeyedJaggedTensor(FEATURES, values, lengths=lengths))

    own, (dense, features) = Of(), inputs(4)
    arguments = dense, features.values(), features.lengths()
    with torch.no_grad():
        program = torch.export.export(own, arguments)
        assert [replacement.op for replacement in replace_in(program).replaced] == ["dlrm_forward"]
    torch.testing.assert_close(program.module()(*arguments), own(*arguments))
