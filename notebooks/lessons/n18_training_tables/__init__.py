"""Training of embedding tables: dense, sparse and fused updates, sums in an order, shared rows and their AUC."""
