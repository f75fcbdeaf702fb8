__all__ = ["FusedMLPError", "fused_mlp", "on_chip_bytes", "pack_mlp"]

# What the module op.py does not hold.
MODULES = {"FusedMLPError": "budget", "on_chip_bytes": "budget", "pack_mlp": "packing"}
# Where torch.compile stops, for the front page.
STOPS = "at each layer: what lies between two products goes through memory"
