"""A small DLRM's forward in one kernel: the reader's, the library's, and its budget."""
