"""A backend of the reader's own; ours, on the reader's DLRM; what would make either wrong; and what a call costs."""
