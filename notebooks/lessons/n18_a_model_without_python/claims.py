"""18, A model without Python: its prose holds no figure; what is measured stands in the cells."""
