"""A small DLRM's forward in one kernel: the reader's, the library's, its budget, and the backend that finds models."""
