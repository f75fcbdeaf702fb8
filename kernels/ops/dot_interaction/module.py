"""DotInteraction: DLRM's pairwise interaction as a module."""

from torch import Tensor, nn

from ...dispatch import checks
from .op import dot_interaction


class DotInteraction(nn.Module):
    """`dot_interaction` of its two inputs. It has no parameters.

    Args:
        pad_to, backend: as of `dot_interaction`.
    """

    def __init__(self, pad_to: int = 1, *, backend: str = "auto") -> None:
        super().__init__()
        self.pad_to, self.backend = checks.integer("DotInteraction", "pad_to", pad_to), backend
        if self.pad_to < 1:
            raise ValueError(f"DotInteraction: pad_to must be a positive integer; got {pad_to}")

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """dense [B, D], sparse [B, F, D] → [B, D + F (F + 1) / 2], and zeros up to a multiple of pad_to."""
        return dot_interaction(dense, sparse, self.pad_to, backend=self.backend)

    def extra_repr(self) -> str:
        return f"pad_to={self.pad_to}"
