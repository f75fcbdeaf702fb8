"""A pytest plugin for mutate.py: what is imported and collected once runs in a fork for each line of standard input."""

import json
import os
import resource
import signal
import sys
from contextlib import suppress

import pytest

LIKELIEST = ("test_adversarial_cases", "test_gradients_of_every_shape", "test_gradients_of_several_chunks")


def pytest_collection_modifyitems(items):
    """The tests that see most mutants come first: a run ends with the first that fails."""
    items.sort(key=lambda item: not item.name.startswith(LIKELIEST))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    with suppress(ImportError):  # what the first call of an op imports, for seconds
        import torch._dynamo  # noqa: F401
        import triton.runtime.interpreter  # noqa: F401
    for line in sys.stdin:
        variables, seconds, cpu_seconds, output = json.loads(line)
        if child := os.fork():
            print(f"ended: {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
            continue
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(variables)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        if cpu_seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, resource.RLIM_INFINITY))
        return None  # the loop itself follows, and pytest ends as ever
    return True
