"""DLRM's interaction: the pairs of a row's vectors in one kernel, and the look-ups of the vectors in the same one."""
