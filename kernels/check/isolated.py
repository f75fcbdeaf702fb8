"""check() in a process of its own: a kernel that kills its process, or leaves a GPU unusable, is a wrong answer.

A notebook's function is known to no other process, so its source goes there, with that of all it names: what the
notebook defines as source, what modules define as imports, numbers and names as they are.
"""

from __future__ import annotations

import ast
import dis
import inspect
import json
import linecache
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType

import torch

from ..runtime import KERNELS, PACKAGE

CHILD = f"import {PACKAGE}" + """
import importlib, importlib.util, json, sys
folder, name, job, *arguments = sys.argv[1:]
spec = importlib.util.spec_from_file_location("solution", folder + "/solution.py")
solution = importlib.util.module_from_spec(spec)
spec.loader.exec_module(solution)
module, _, job = job.partition(":")
error = None
try:
    getattr(importlib.import_module(module), job)(getattr(solution, name), *arguments)
except AssertionError as wrong:
    error = str(wrong)
with open(folder + "/result", "w") as file:
    json.dump(error, file)
"""


class Ended(AssertionError):
    """The other process ended without a verdict."""


def run_apart(function: Callable, job: str, *arguments: str, seconds: float) -> str:
    """job(function, *arguments) in another process; job: "module:name". What it printed.

    The seconds are for all that the process does: it starts Python, imports torch, and tries every case. However it
    ends, the processes that it started end then: they are of one group, which is killed.

    Raises:
        AssertionError: the job's own. Ended: the process ended without a verdict, or had to be stopped. ValueError: a
        function that cannot be carried.
    """
    name, source = source_of(function)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "solution.py").write_text(source)
        path = os.pathsep.join([str(KERNELS.parent), *filter(None, sys.path)])
        command = [sys.executable, "-c", CHILD, folder, name, job, *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        printed, errors, result = (Path(folder) / name for name in ("printed", "errors", "result"))
        # Files: the end of a pipe comes when the last process that has it ends, which may be one that was left behind.
        with open(printed, "w") as out, open(errors, "w") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = f"it does not end: stopped after {seconds:g} s, which is for all cases together"
            raise Ended(f"{late}\nHint: Does each loop come to its end?") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not result.exists():
            raise Ended(f"the process ended {_how(status, errors.read_text())}")
        if (error := json.loads(result.read_text())) is not None:
            raise AssertionError(error)
        return printed.read_text()


def _how(status: int, errors: str) -> str:
    if status < 0:
        return f"by {signal.Signals(-status).name}: an access far outside of all tensors does that"
    return f"with status {status}: {errors.strip()[-500:]}"


def source_of(function: Callable) -> tuple[str, str]:
    """(the name of the function or class, the text of a module that defines it and all that it names).

    Raises ValueError, naming what cannot be written down: a lambda, a closure's variable, an object.
    """
    plain = inspect.unwrap(getattr(function, "fn", function))
    if not (inspect.isfunction(plain) or inspect.isclass(plain)) or plain.__name__ == "<lambda>":
        raise ValueError(f"isolated=True takes a function defined with def; got {function!r}")
    parts: dict[str, str] = {}
    _carry(plain.__name__, function, parts)
    return plain.__name__, "\n\n".join(parts.values()) + "\n"


def _carry(name: str, value: object, parts: dict[str, str]) -> None:
    """Add the text that defines the name to the parts, behind what it needs itself."""
    if name in parts:
        return
    parts[name] = ""  # it may name itself
    plain = getattr(value, "fn", value)  # of a @triton.jit function
    home = getattr(plain, "__module__", None)
    if isinstance(value, ModuleType):
        text = f"import {value.__name__} as {name}"
    elif _is_imported(plain, home):
        text = f"from {home} import {plain.__name__} as {name}"
    elif inspect.isfunction(plain) or inspect.isclass(value):
        text = _definition(plain, parts)
    elif isinstance(value, bool | int | float | str | torch.dtype | None):
        text = f"{name} = {value!r}"
        if isinstance(value, torch.dtype):
            _carry("torch", torch, parts)
    elif type(value).__name__ == "constexpr":
        text = f"import triton.language\n{name} = triton.language.constexpr({value.value!r})"
    else:
        raise ValueError(f"isolated=True cannot carry {name}, a {type(value).__name__}")
    del parts[name]  # to stand behind what it needs
    parts[name] = text


def _is_imported(value: object, home: str | None) -> bool:
    """Whether another process finds the function or class in the module of that name, Python's own included."""
    if home in ("__main__", None) or not (inspect.isroutine(value) or inspect.isclass(value)):
        return False
    return home in sys.builtin_module_names or bool(getattr(sys.modules.get(home), "__file__", None))


def _definition(function: Callable, parts: dict[str, str]) -> str:
    if getattr(function, "__closure__", None):
        raise ValueError(f"isolated=True cannot carry {function.__name__}: it uses variables of a function around it")
    text = textwrap.dedent(_class_text(function) if inspect.isclass(function) else inspect.getsource(function))
    scope = getattr(function, "__globals__", None) or vars(sys.modules[function.__module__])
    for name in _globals(compile(text, "<source>", "exec", dont_inherit=True)):
        if name in scope and name != function.__name__:
            _carry(name, scope[name], parts)
    return text


def _class_text(class_: type) -> str:
    """inspect's; it knows no file of a notebook's class, so that is found by a method of it."""
    try:
        return inspect.getsource(class_)
    except (OSError, TypeError):
        methods = (getattr(member, "__func__", member) for member in vars(class_).values())
        file = next((method.__code__.co_filename for method in methods if inspect.isfunction(method)), "")
        lines = linecache.getlines(file)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == class_.__name__:
                first = min(part.lineno for part in (node, *node.decorator_list))
                return "".join(lines[first - 1 : node.end_lineno])
        raise ValueError(f"isolated=True cannot carry {class_.__name__}: its text is not known") from None


def _globals(code: CodeType) -> Iterator[str]:
    """The names that are looked up outside of all functions: a parameter is not, whatever else has its name."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
