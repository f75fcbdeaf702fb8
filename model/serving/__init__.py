"""A trained DLRM as it is served: raw counts and ids in, probabilities out, in Python and in C++ (cpp/)."""
