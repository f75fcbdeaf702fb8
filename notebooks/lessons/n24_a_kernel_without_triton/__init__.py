"""A Triton kernel as a file: what a launch must know of it, and a C++ program that launches it."""
