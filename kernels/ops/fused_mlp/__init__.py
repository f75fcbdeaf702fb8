__all__ = ["FusedMLP", "FusedMLPError", "fused_mlp", "on_chip_bytes", "pack_mlp"]

# What the module op.py does not hold.
MODULES = {"FusedMLP": "module", "FusedMLPError": "budget", "on_chip_bytes": "budget", "pack_mlp": "module"}
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "{rows:,} rows through {widths}, {numbers} ({floor}: the weights into one SM)"
STOPS = "at each layer: what lies between two products goes through memory"
