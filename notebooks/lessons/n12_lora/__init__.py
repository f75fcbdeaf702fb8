"""LoRA's passes over memory, its gradients, what merging keeps, many adapters at once; what they take on a GPU."""
