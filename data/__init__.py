"""Criteo click logs: schema and reader (criteo), raw files to Parquet (preprocess), a synthetic stand-in (synthetic)."""
