__all__ = [
    "assemble_deepstack_embedding",
    "embedding_lookup",
    "embedding_lookup_multimodal",
    "embedding_lookup_with_image",
]
# For kernels/README.md: what is measured, by the labels of its rows, and where torch.compile stops.
CASE = "`{lookup}` of {ids:,} ids, rows of {columns:,}, {numbers}"
STOPS = "nowhere: one kernel"
