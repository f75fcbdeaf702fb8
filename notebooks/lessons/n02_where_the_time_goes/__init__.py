"""Where a training step's time goes: its phases on host and GPU, what a launch costs, floors, TF32."""
