"""A DLRM written from its parts, trained on the sample; its FLOPs and bytes, counted and drawn."""
