"""DLRM's MLPs, each in one kernel."""
