"""What Triton's interpreter computes anew for every operation and comes out the same, once: half of its time.

A type's shape as Triton's own tuples and the NumPy dtype of a type are computed by Triton's own code the first time,
and taken from there afterwards. triton.language is patched once a launch, and not for each function that a kernel calls
too. What would be computed for nobody is not computed. Written for triton 3.6 and 3.7.
"""

from __future__ import annotations

import functools
import inspect

OF_A_TENSOR = {"handle", "shape", "numel", "type", "dtype"}
OF_A_BLOCK = {"element_ty", "shape", "numel", "name"}


@functools.cache
def install() -> None:
    """For the rest of this process."""
    from triton.runtime import interpreter

    core = interpreter.tl.core
    core.tensor.__init__ = _of_tensors(core, core.tensor.__init__)
    core.block_type.__init__ = _of_blocks(core, core.block_type.__init__)
    core.tuple.__eq__ = _of_tuples(core, core.tuple.__eq__)
    interpreter._get_np_dtype = _of_numpy(core, interpreter._get_np_dtype)
    interpreter._patch_builtin = _of_builtins(interpreter, interpreter._patch_builtin)
    interpreter._patch_lang = _of_language(interpreter, interpreter._patch_lang)
    semantic = interpreter.TritonSemantic
    semantic.binary_op_sanitize_overflow_impl = _of_overflows(interpreter, semantic.binary_op_sanitize_overflow_impl)


def _integers(core, shape) -> tuple[int, ...] | None:
    """The sizes as Python's tuple; None if there is anything but ints among them."""
    values = shape.values if type(shape) is core.tuple else shape
    return tuple(values) if type(values) in (list, tuple) and {*map(type, values)} <= {int} else None


def _of_tensors(core, init):
    known = {}

    @functools.wraps(init)
    def new_init(self, handle, type):
        shape = type.shape if type.is_block() else None
        found, numel, sizes = known.get(id(shape), (known, None, None))
        if found is not shape:
            init(self, handle, type)
            if vars(self).keys() == OF_A_TENSOR:
                known[id(shape)] = shape, self.numel, self.shape
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = numel, sizes

    return new_init


def _of_blocks(core, init):
    known = {}

    @functools.wraps(init)
    def new_init(self, element_ty, shape):
        key = str(element_ty), None if type(shape) is tuple else _integers(core, shape)  # which Triton refuses
        if key not in known:
            init(self, element_ty, shape)
            if key[1] is not None and vars(self).keys() == OF_A_BLOCK:
                known[key] = self.shape, self.numel, self.name
            return
        self.element_ty = element_ty
        self.shape, self.numel, self.name = known[key]

    return new_init


def _of_tuples(core, equal):
    @functools.wraps(equal)
    def new_equal(self, other):
        sizes = _integers(core, other)
        return equal(self, other) if sizes is None else core.constexpr(self.values == list(sizes))

    return new_equal


def _of_numpy(core, numpy_dtype):
    known = {}

    @functools.wraps(numpy_dtype)
    def new_numpy_dtype(of):
        if type(of) is not core.dtype:
            return numpy_dtype(of)
        if of.name not in known:
            known[of.name] = numpy_dtype(of)
        return known[of.name]

    return new_numpy_dtype


def _of_builtins(interpreter, patch):
    """A launch patches the functions that are marked as Triton's own. Which of the names are functions stays."""
    is_builtin = interpreter.tl.core.is_builtin

    @functools.cache
    def functions_of(package, names: tuple[str, ...]) -> list[str]:
        members = inspect.getmembers(package)
        return [name for name, member in members if inspect.isroutine(member) or is_builtin(member)]

    @functools.wraps(patch)
    def new_patch(package, builder, scope):
        for name in functions_of(package, tuple(vars(package))):
            if is_builtin(member := getattr(package, name)):  # a test may have replaced it
                interpreter._patch_attr(package, name, member, builder, scope)

    return new_patch


def _of_language(interpreter, patch):
    """A function that a kernel calls finds the language patched by the kernel's launch, which undoes it at its end."""
    patched = []  # the modules, while a kernel runs

    @functools.cache
    def language_of(function):
        modules = (interpreter.tl, interpreter.tl.core)
        return [module for module in modules if any(value is module for value in function.__globals__.values())]

    @functools.wraps(patch)
    def new_patch(function):
        language = language_of(function)
        if language and all(module in patched for module in language):
            return interpreter._LangPatchScope()
        scope = patch(function)
        restore = scope.restore

        def new_restore():
            patched.clear()
            restore()

        scope.restore = new_restore
        patched.extend(language)
        return scope

    return new_patch


def _of_overflows(interpreter, sanitize):
    """Triton computes of each sum of integers whether it overflows, and says so where it debugs."""

    @functools.wraps(sanitize)
    def new_sanitize(self, *given):
        if not isinstance(self.builder, interpreter.InterpreterBuilder) or self.builder.options.debug:
            sanitize(self, *given)

    return new_sanitize
