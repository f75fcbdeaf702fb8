"""What Triton's interpreter computes anew for every operation and comes out the same, once: half of its time.

A type's shape as Triton's own tuples, the NumPy dtype of a type, the functions that triton.language gets while a kernel
runs: each is computed by Triton's own code the first time, and taken from there afterwards. What would be computed for
nobody is not computed. Written for triton 3.6 and 3.7.
"""

from __future__ import annotations

import functools

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
        key = str(element_ty), _integers(core, shape)
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


def _of_language(interpreter, patch):
    """The patch of the language is the same for all kernels that see the same modules. It is made anew where something
    else than before stands in its place."""
    known = {}

    def now(owner, name: str):
        return vars(owner).get(name, interpreter._MISSING)

    @functools.wraps(patch)
    def new_patch(function):
        seen = {id(value) for value in function.__globals__.values()}
        key = tuple(id(module) in seen for module in (interpreter.tl, interpreter.tl.core))
        changes = known.get(key, {})
        if not changes or any(now(*place) is not old for place, (old, _) in changes.items()):
            scope = patch(function)
            firsts = {(owner, name): old for owner, name, old in reversed(scope._changes)}
            known[key] = {place: (old, now(*place)) for place, old in firsts.items()}
            return scope
        scope = interpreter._LangPatchScope()
        for (owner, name), (old, new) in changes.items():
            scope._changes.append((owner, name, old))
            setattr(owner, name, new)
        return scope

    return new_patch


def _of_overflows(interpreter, sanitize):
    """Of each sum of integers Triton computes whether it overflows, and says so where it debugs."""

    @functools.wraps(sanitize)
    def new_sanitize(self, *given):
        if not isinstance(self.builder, interpreter.InterpreterBuilder) or self.builder.options.debug:
            sanitize(self, *given)

    return new_sanitize
