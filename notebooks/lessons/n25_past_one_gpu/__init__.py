"""Past one GPU: tables in pieces over several processes, which exchange ids, vectors and gradients."""
