"""A trained DLRM out of Python: exported, checked at its door, served from C++, reloaded, and as ONNX."""
