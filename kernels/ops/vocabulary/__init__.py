__all__ = [
    "assemble_deepstack_embedding",
    "embedding_lookup",
    "embedding_lookup_multimodal",
    "embedding_lookup_with_image",
]
# Where torch.compile stops, for the front page.
STOPS = "nowhere: one kernel"
