"""toy_weighted's kernel, as generated source: out[i] = weight · Σ of list i."""

from kernels.device.source_launch import Elements, Source, Stride, launch

TEXT = """
#include "device/launch.cuh"
struct Arguments {
    const float* lists[COUNT];
    long long strides[COUNT], elements[COUNT], weight;
    float* out;
};
extern "C" __global__ void weighted(const __grid_constant__ Arguments given) {
    const int i = blockIdx.x;
    float sum = 0;
    for (long long k = 0; k < given.elements[i]; ++k) sum += given.lists[i][k * given.strides[i]];
    given.out[i] = given.weight * sum;
}
"""


def forward(lists, weight, out):
    source = Source("weighted", TEXT.replace("COUNT", str(len(lists))), threads=1)
    launch(source, (len(lists),), *lists, *map(Stride, lists), *map(Elements, lists), weight, out)
