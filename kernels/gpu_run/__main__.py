"""python -m kernels.gpu_run, which `make gpu` calls: tests, sanitizers and a glance at the benchmarks on a GPU."""

import sys

from .steps import main

sys.exit(main(sys.argv[1:]))
