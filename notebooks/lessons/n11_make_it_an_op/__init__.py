"""What makes a kernel an op, in torch.library alone and in our declaration, and what a call of each costs."""
