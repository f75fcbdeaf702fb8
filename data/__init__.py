"""Criteo click logs: schema and reader (criteo), raw files to Parquet (preprocess), a stand-in (synthetic)."""
