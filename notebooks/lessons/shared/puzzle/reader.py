"""Which code is the reader's: the line of it that failed, and whether it calls what it is to write."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, MethodType

import torch
from torch import Tensor

from kernels.check.interpreter import OutOfBounds
from kernels.runtime import KERNELS

ROOT = KERNELS.parent
INSTALLED = tuple({*map(Path, sysconfig.get_paths().values()), Path(torch.__file__).resolve().parents[1]})
# Repository code that stands between an answer and torch: a reader does not know that it is there.
BETWEEN = (ROOT / "kernels" / "check", Path(__file__).resolve().parent)
MODES = {"__torch_dispatch__", "__torch_function__", "find_spec"}  # what torch calls, and Python where it imports
WRITE_IT = "this is what you are to write"
CALLED = f"{{}} was called: {WRITE_IT}"


def plain(answer: object) -> object:
    """The function under @triton.jit, @autotune and functools.wraps."""
    while hasattr(answer, "fn"):
        answer = answer.fn
    return inspect.unwrap(answer) if callable(answer) else answer


def files_of(answers: Sequence[object]) -> set[str]:
    """Where the answers are written; answers may be functions, kernels, or tuples of them."""
    flat = [part for answer in answers for part in (answer if isinstance(answer, tuple | list) else (answer,))]
    codes = (getattr(plain(answer), "__code__", None) for answer in flat)
    return {code.co_filename for code in codes if code is not None}


def _is_readers(file: str, own: Collection[str]) -> bool:
    return file in own or _is_elsewhere(file)


@functools.cache
def _is_elsewhere(file: str) -> bool:
    """Whether it is neither the repository's nor a package's: a cell of a notebook, a file of the reader's."""
    if file.startswith("<"):
        return file.startswith("<ipython-input")
    path = Path(file)
    return path.is_absolute() and not any(path.is_relative_to(folder) for folder in (ROOT, *INSTALLED))


# ----------------------------------------------------------------------------------------------------- what went wrong


def in_words(error: Exception, own: Collection[str]) -> str:
    """What to print of an exception: its text, the line of the reader's code that it came from, its hint."""
    lines = str(error).strip().splitlines() or [""]
    text = str(error).strip() if isinstance(error, AssertionError) else f"{type(error).__name__}: {lines[0][:300]}"
    message, _, hint = text.partition("\nHint: ")
    line = line_of(error, own)
    message = message.rstrip(".") + line if line else message
    return f"{message}\nHint: {hint}" if hint else message


def line_of(error: BaseException, own: Collection[str]) -> str:
    """", in line 3: `…`": the reader's innermost line that the error, or what it was made of, came from; "" if none."""
    chain = [error]
    while (cause := chain[-1].__cause__ or (not chain[-1].__suppress_context__ and chain[-1].__context__)) is not None:
        if not cause or cause in chain:
            break
        chain.append(cause)
    if any(isinstance(link, OutOfBounds) for link in chain):  # it says the kernel's line itself
        return ""
    for link in reversed(chain):
        frames = [(frame, number) for frame, number in traceback.walk_tb(link.__traceback__)]
        for frame, number in reversed(frames):
            if _is_readers(frame.f_code.co_filename, own):
                return _line(frame.f_code, number)
    return ""


def is_readers(frame: FrameType, own: Collection[str]) -> bool:
    """Whether the frame is one of the reader's functions."""
    return _is_readers(frame.f_code.co_filename, own) and frame.f_code.co_name != "<module>"


def line_that_runs(frame: FrameType | None, own: Collection[str]) -> str:
    """The same of a frame that runs now."""
    while frame is not None:
        if is_readers(frame, own):
            return _line(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def _line(code: CodeType, number: int | None) -> str:
    if not number or number < 0:  # some instructions are of no line: the function's first one stands for it
        number = code.co_firstlineno
    text = linecache.getline(code.co_filename, number).strip()
    return f", in line {number}: `{text}`" if text else f", in line {number}"


# ------------------------------------------------------------------------------------------------ what may be called


def alone(function: Callable, allowed: Collection[Callable] = (), forbidden: Collection[str] = ()) -> Callable:
    """The function; AssertionError if it calls what lies in the repository: the lesson's own, the model's, an op; or
    a package that is forbidden, in Python or in C++.

    What it is given it may call: functions, and the methods of objects; and those that are allowed.
    """
    if not callable(function):
        raise AssertionError(f"give the function itself; got {type(function).__name__}")
    known = {code for value in allowed for code in _codes(value)}
    named_in_it = _named_in(function, forbidden)

    @functools.wraps(function)
    def alone(*arguments, **named):
        codes = known | {code for value in (*arguments, *named.values()) for code in _codes(value)}
        called: list[str] = []
        inside: list[FrameType] = []  # what was given and runs now, whatever it calls

        def note(frame: FrameType, event: str, what: object) -> None:
            if inside:
                if event == "return" and frame is inside[0]:
                    inside.clear()
            elif event == "call" and _is_ours(frame.f_code.co_filename):
                if frame.f_code in codes or frame.f_code.co_name in MODES:
                    inside.append(frame)
                elif not called:
                    called.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
            elif forbidden and not called and event in ("call", "c_call"):
                module = frame.f_globals.get("__name__") if event == "call" else getattr(what, "__module__", "")
                if str(module).partition(".")[0] in forbidden:
                    called.append(f"{module}.{frame.f_code.co_name if event == 'call' else what.__name__}")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            result = function(*arguments, **named)
        except Exception as error:
            if called:
                raise AssertionError(CALLED.format(called[0])) from error
            raise
        finally:
            sys.setprofile(before)
        if called or named_in_it:  # by map(), say, no call of what is in C++ is seen
            raise AssertionError(CALLED.format([*called, *named_in_it][0]))
        return result

    return alone


def _named_in(function: Callable, packages: Collection[str]) -> list[str]:
    """What the function's text names of these packages: what it imports, its global names, and what is around it."""
    function, names = plain(function), []
    codes = [code] if (code := getattr(function, "__code__", None)) else []
    while codes and packages:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            value = getattr(function, "__globals__", {}).get(name)
            module = name if value is None else getattr(value, "__module__", None) or getattr(value, "__name__", "")
            if str(module).partition(".")[0] in packages:
                whole = inspect.ismodule(value) or module == name
                names.append(name if whole else f"{module}.{getattr(value, '__name__', name)}")
    return names


def ask(told: str, answer: Callable, arguments: tuple, hint: str, forbidden: Collection[str] = ()) -> object:
    """What the answer returns. AssertionError: what it raised, by the case's name, told, and with a hint."""
    answer = alone(answer, forbidden=forbidden)
    try:
        inspect.signature(answer).bind(*arguments)
    except TypeError as error:
        raise AssertionError(
            f"{told}it cannot be called so: {error}\nHint: the function's first line stays as it is."
        ) from error
    except ValueError:  # it has no signature in Python
        pass
    try:
        return answer(*arguments)
    except Exception as error:
        message = str(error).strip().partition("\n")[0][:300]
        if isinstance(error, AssertionError) and WRITE_IT in message:
            raise
        raised = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise AssertionError(f"{told}{raised}\nHint: {hint}") from error


def written_by_hand(kernel: object, allowed: Collection[object] = ()) -> None:
    """AssertionError if a kernel is the repository's own, or calls one that is, by way of others too; those that are
    allowed it may call."""
    names, known, left = [plain(item).__name__ for item in allowed], set(), [plain(kernel)]
    while left:
        function = left.pop()
        if function in known:
            continue
        known.add(function)
        file, name = function.__code__.co_filename, function.__name__
        if name not in names and file == f"<{name}>":  # kernels.inductor's define: it is a lesson's answer
            raise AssertionError(CALLED.format(name))
        if name not in names and _is_ours(file):
            raise AssertionError(CALLED.format(f"{Path(file).stem}.{name}"))
        if function.__name__ not in names:
            names_in_it = function.__code__.co_names
            called = [function.__globals__.get(name) for name in names_in_it]
            modules = [value for value in called if inspect.ismodule(value) and _is_ours(value.__file__ or "")]
            called += [getattr(module, name, None) for module in modules for name in names_in_it]
            left += [plain(value) for value in called if hasattr(value, "fn") and hasattr(plain(value), "__code__")]


def _is_ours(file: str) -> bool:
    """Whether the file is the repository's, and a reader could know of it; a test of answers is a reader."""
    path = Path(file)
    if not path.is_relative_to(ROOT) or any(path.is_relative_to(folder) for folder in (*BETWEEN, *INSTALLED)):
        return False
    return not path.name.startswith("test_")


def _codes(value: object) -> Iterator[CodeType]:
    """The code of a function, of a method, or of all methods of an object of the repository."""
    value = value.__func__ if isinstance(value, MethodType) else value
    if hasattr(value, "__code__"):
        yield value.__code__
    elif _is_ours(getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""):
        for method in vars(type(value)).values():
            if hasattr(method, "__code__"):
                yield method.__code__


def unchanged(told: str, name: str, tensor: Tensor, kept: Tensor) -> None:
    """AssertionError if a caller's tensor has other bits than before."""
    same = tensor.shape == kept.shape and tensor.numpy().tobytes() == kept.numpy().tobytes()
    assert same, (
        f"{told}the {name} were changed\n"
        f"Hint: a caller may still need them. A method with _ at its end changes its tensor, and so does {name}[…] = …"
    )
