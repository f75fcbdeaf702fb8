"""What torch.compile makes of DLRM: its graphs, how often they are made, what is fused, what it costs and brings."""
