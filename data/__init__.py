"""Click logs: the columns (schema), reader (criteo), raw files to Parquet (preprocess), a stand-in (synthetic)."""
