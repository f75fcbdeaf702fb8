"""A clock that is told what to say, and a small cell, for the tests of kernels.measure."""

import itertools
from dataclasses import replace

import torch

import kernels
from kernels.measure.cells import Cell, Row


class Clock:
    """Replays by calling again; `told` are the µs that its replays take."""

    device = torch.device("cpu")
    l2_bytes = 1000

    def __init__(self, times=(30.0, 10.0, 20.0), free=1e9, copies=(500.0,)):
        self.told, self.spoil, self.free, self.cleared = list(times), lambda: None, free, 0
        self.copies = itertools.cycle(copies)

    def free_bytes(self):
        return self.free

    def on_side_stream(self, work):
        return work()

    def capture(self, work):
        outputs = work()

        def replay():
            for output, new in zip(flat(outputs), flat(work()), strict=True):
                if output is not new:
                    output.copy_(new)

        return replay, outputs

    def times(self, replays):
        for replay in replays.values():
            replay()
        self.spoil()
        return dict.fromkeys(replays, self.told)

    def calls(self, call, count):
        for k in range(count):
            call(k)
        self.spoil()
        return [self.told[k % len(self.told)] for k in range(count)]

    def synchronize(self):
        pass

    def clear(self):
        self.cleared += 1

    def copy(self, op):
        row = Row(op, "copy", "copy", "b.copy_(a)", {"rows": 1, "columns": 2**30, "dtype": "uint8"}, bytes=2**31)
        us = next(self.copies)
        return replace(row, us_p20=us - 1, us_p50=us, us_p80=us + 1)


def flat(outputs):
    for output in outputs:
        yield from [output] if isinstance(output, torch.Tensor) else flat(output or ())


def inputs(draw, ids):
    return draw(4, 8), draw(8)


def cell(form="functional", dtype="float32", part="bandwidth", **implementations):
    functions = {
        "eager": lambda: kernels.add_relu_ if form == "in place" else kernels.add_relu,
        **{name: (lambda f=function: f) for name, function in implementations.items()},
    }
    labels = {"rows": 4, "columns": 8, "dtype": dtype}
    return Cell("add_relu", part, form, labels, inputs, functions, 256, 64)


def rows_of(measured):
    return {row.implementation: row for row in measured}
