"""DLRM's dense layers: an MLP in one kernel, the interaction, a linear layer over an outer product."""
