"""The op of a package's own kernel, over a driver that records, in a process of test_export_precision.py:

    python packaged_launches.py FOLDER DRIVER OPS

FOLDER has the library that `build` made, DRIVER is fake_libcuda.c's, and OPS says in JSON which op is which model's. It
prints in JSON what was launched, and how far the probabilities are off that the kernels, built for the host, make of
the arguments of the launch.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import fake_driver
import torch
from exported_models import trained

from kernels import library
from kernels.check.host import run_source
from kernels.cubin import compile as cubins
from kernels.ops.dlrm import packaged
from kernels.ops.dlrm.cluster import Clusters
from kernels.ops.dlrm.cuda_launch import design_of
from kernels.ops.dlrm.pair import Pairs
from kernels.ops.dlrm.shape import Shape
from model import export
from model.config import Precision
from model.serving import forms
from model.serving.served import Served, as_trained

MODELS = {
    "tiles": ({"bottom": (13, 128, 16), "top": (64, 1)}, Precision.TF32),
    "pairs": ({"bottom": (13, 256, 128, 64, 16), "top": (128, 64, 1)}, Precision.BF16),
    "lanes": ({}, Precision.FP32),
}  # fmt: skip
# (rows, multiprocessors): of an H200, and of so few that no clusters are taken, or one.
CALLS = [(rows, 132) for rows in (1, 120, 121, 240, 241)] + [(rows, 2) for rows in (1, 7, 9, 17, 33, 100)] + [
    (rows, 16) for rows in (8, 9, 16, 17, 257)
]  # fmt: skip
SHARED = 227 * 1024  # an H200's bytes of shared memory a block
# The launcher asks an image for its kernels' names and sizes, and no more: the kernels' own code takes nvcc longer.
EMPTY = """struct Arguments {{ long long numbers[{numbers}]; }};
extern "C" __global__ void {name}(const __grid_constant__ Arguments given) {{}}
"""


def form(name):
    """What a package computes, as for an H200."""
    changes, precision = MODELS[name]
    arch, shared = lambda device: 90, lambda device: SHARED
    with mock.patch.multiple(forms, architecture=arch, shared_memory=shared, check_precision=lambda *_: None):
        return forms.form(Served(trained(**changes)).eval(), precision, torch.device("cuda"))


def bytes_of(program):
    features, layers = program.shape.features, len(program.shape.layers)
    return 8 * (7 + 6 * features if isinstance(program.designs[0], packaged.Tiles) else 4 + 4 * features + 2 * layers)


source_of = packaged.source_of


def build(folder):
    """A library of all models' ops, without their kernels' code; returns the ops' names."""
    ops, sources = {}, []
    for name in MODELS:
        program = form(name).program

        def empty(design, program=program):
            source = source_of(design)
            return replace(source, text=EMPTY.format(name=source.name, numbers=bytes_of(program) // 8))

        own = folder / name
        own.mkdir()
        with mock.patch.object(packaged, "source_of", empty):
            ops[name], files = program.build(own)
        sources += files
        (image, *_) = sorted(own.glob("*.cubin"))
        assert cubins.description_of(image)["parameters"][0]["bytes"] == bytes_of(program)
    library.build(folder / "libops.so", None, sources)
    return ops


def wrong(op, *arguments):
    try:
        op(*arguments)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


@torch.no_grad()
def launched(name, op, driver, loaded):
    """What the model's calls launch. loaded: how many images were before."""
    one, (changes, precision) = form(name), MODELS[name]
    one.load(op)
    served, program = Served(trained(**changes)).eval(), one.program
    exported = torch.export.export(one, tuple(export.sample(served, 5, 0)))
    targets = [str(node.target) for node in exported.graph.nodes]
    nodes = [target.split(".")[1] for target in targets if "dlrm" in target or "linear" in target]
    driver.set_parameters(bytes_of(program))
    launches, off = [], 0.0
    for rows, multiprocessors in CALLS:
        driver.set(multiprocessors=multiprocessors)
        inputs = export.sample(served, rows, rows)
        dense, ids = as_trained(inputs[0]).to(one.rows.dtype), one._rows(inputs[1])
        logits = one.op(dense, one.rows, ids, one.laid_out)
        made = driver.launches()[-1]
        numbers = made.parameters[: bytes_of(program) // 8]  # the one struct's
        design = program.designs[made.function - 1001 - loaded]
        source = packaged.source_of(design)
        launches.append([packaged.name_of(design), made.grid[0], made.cluster[0], made.kind])
        assert ([*made.block], made.shared) == ([source.threads, 1, 1], source.shared)
        if isinstance(design, Clusters | Pairs):
            assert design.laid_out
            design = replace(design, laid_out=False)
        products = "tf32" if precision is Precision.TF32 else "ieee"
        assert design == design_of(program.shape, program.dtype, products, 90, SHARED, rows, multiprocessors)
        if isinstance(design, Shape | Pairs) or design.rows == 8:  # g++ takes its time for each
            run_source.run(source, made.grid, numbers)
            probabilities = logits.squeeze(1).float().sigmoid()
            off = max(off, (probabilities.double() - served.exactly(*inputs)).abs().max().item())
    rows = torch.zeros(3, 4, dtype=torch.int64)
    right = torch.zeros(3, 13, dtype=one.rows.dtype), one.rows, rows, one.laid_out
    errors = [
        wrong(one.op, right[0][:, 1:], *right[1:]), wrong(one.op, right[0].double(), *right[1:]),
        wrong(one.op, *right[:2], rows.int(), right[3]),
    ]  # fmt: skip
    assert one.op(right[0][:0], one.rows, rows[:0], one.laid_out).shape == (0, 1)
    return {"launches": launches, "off": off, "nodes": nodes, "wrong": errors}


def main():
    folder, driver, ops = Path(sys.argv[1]), fake_driver.Driver(Path(sys.argv[2])), json.loads(sys.argv[3])
    torch.ops.load_library(str(folder / "libops.so"))
    told = {}
    for name, op in ops.items():
        told[name] = launched(name, op, driver, driver.load_count)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
