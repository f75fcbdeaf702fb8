"""DLRM's forward for models too large for a thread: tiles of rows, clusters and pairs of SMs that share the weights."""
