"""What of a fused MLP lies on a chip: bytes by widths, tile and dtype."""


class FusedMLPError(ValueError):
    """The layers do not fit on a chip; says the bytes needed and available."""


def on_chip_bytes(widths, tile, dtype):
    raise NotImplementedError
