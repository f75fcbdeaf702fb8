// CUDA's vector types, for g++: float4 and the like, aligned as CUDA aligns them.
#pragma once

#define VECTORS(type, element, size)                                                                              \
    struct alignas(2 * size) type##2 { element x, y; };                                                           \
    struct type##3 { element x, y, z; };                                                                          \
    struct alignas(4 * size) type##4 { element x, y, z, w; };                                                     \
    inline type##2 make_##type##2(element x, element y) { return {x, y}; }                                        \
    inline type##3 make_##type##3(element x, element y, element z) { return {x, y, z}; }                          \
    inline type##4 make_##type##4(element x, element y, element z, element w) { return {x, y, z, w}; }
VECTORS(float, float, 4)
VECTORS(int, int, 4)
VECTORS(uint, unsigned, 4)
#undef VECTORS
