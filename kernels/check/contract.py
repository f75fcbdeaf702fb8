"""The op contract of the pointwise ops as tests: an op's test file derives a class from PointwiseContract."""

import functools
import gc
import itertools
import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import kernels
from kernels import runtime
from kernels.check import testing
from kernels.check.testing import Call, Case

DEVICE = runtime.device()
OPS = torch.ops.fused_kernels
GPU = pytest.mark.skipif(DEVICE.type != "cuda", reason="no CUDA device")


def backend_parameters(*backends):
    """pytest parameters; a backend that this machine lacks is skipped, with the reason."""
    reasons = runtime.backends(DEVICE) | ({"cuda": "no CUDA device"} if DEVICE.type == "cpu" else {})
    return [
        pytest.param(backend, marks=pytest.mark.skipif(bool(reasons[backend]), reason=reasons[backend]))
        for backend in backends
    ]


every_backend = pytest.mark.parametrize("backend", backend_parameters("eager", "triton", "cuda"))
kernel_backend = pytest.mark.parametrize("backend", backend_parameters("triton", "cuda"))


@pytest.fixture(autouse=True)
def _dynamo_forgets():
    yield
    torch._dynamo.reset()


class PointwiseContract:
    """`op` is the op's name; `options` are the calls' (multiplier, activation), one of them if it takes none."""

    op: str
    options: tuple[tuple, ...] = ((),)

    # --------------------------------------------------------------------------------------------------- helpers

    def function(self, backend, in_place=False):
        return functools.partial(getattr(kernels, self.op + "_" * in_place), backend=backend)

    def dispatcher_op(self, backend, form=""):
        """form: '', '_' (in place) or 'backward'. The public function is called once, which loads a CUDA extension."""
        self.function(backend)(*self.call().arguments())
        name = f"{self.op}_backward_{backend}" if form == "backward" else f"{self.op}_{backend}{form}"
        return getattr(OPS, name).default

    def call(self, case=None, option=0, device=DEVICE):
        calls = list(testing.ARGUMENTS[self.op](case or Case((5, 24)), torch.device(device)))
        return Call("", calls[0].tensors, self.options[option])

    def backward_arguments(self, call):
        """Arguments of the backward op, for every gradient."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------- values

    @every_backend
    @pytest.mark.parametrize("in_place", [False, True])
    def test_adversarial_cases(self, backend, in_place):
        cases = testing.pointwise_cases() + (testing.wide_cases() if DEVICE.type == "cuda" else [])
        if backend == "eager":  # plain PyTorch rounds half precision after every operation
            cases = [case for case in cases if case.dtype.itemsize >= 4]
        testing.check(self.op + "_" * in_place, self.function(backend, in_place), cases=cases)

    @every_backend
    @hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @hypothesis.given(
        shape=st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
        dtype=st.sampled_from([torch.float32, torch.float64]),
        layout=st.sampled_from(["contiguous", "transposed", "strided", "expanded", "misaligned"]),
        values=st.sampled_from(["normal", "special"]),
    )
    def test_generated_cases(self, backend, shape, dtype, layout, values):
        testing.check(self.op, self.function(backend), cases=[Case(shape, dtype, layout, values)])

    def test_auto_is_triton_on_a_gpu_and_eager_on_a_cpu(self):
        assert runtime.choose("auto", torch.ones(1, device=DEVICE)) == ("triton" if DEVICE.type == "cuda" else "eager")
        testing.check(self.op, getattr(kernels, self.op), cases=[Case((5, 24))])

    # --------------------------------------------------------------------------------------------------- in place

    @every_backend
    def test_in_place_refuses_gradients_and_names_the_functional_form(self, backend):
        function = self.function(backend, in_place=True)
        for index in range(len(self.call().tensors)):
            call = self.call()
            call.tensors[index].requires_grad_()
            with pytest.raises(RuntimeError, match=f"{self.op}_ has no gradient: call {self.op},"):
                function(*call.arguments())
            with torch.no_grad():
                function(*call.arguments())
            with torch.inference_mode():
                function(*call.arguments())

    @every_backend
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_in_place_is_seen_by_autograd(self, backend, mode):
        weight = torch.ones(5, 24, device=DEVICE, requires_grad=True)
        call = self.call()
        product = weight * call.tensors[0]  # saves x
        with mode():
            self.function(backend, in_place=True)(*call.arguments())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()

    @every_backend
    def test_in_place_refuses_what_it_would_corrupt(self, backend):
        call, function = self.call(), self.function(backend, in_place=True)
        rest = call.tensors[2:]
        with pytest.raises(ValueError, match="x must not be expanded"):
            function(torch.ones(1, 24, device=DEVICE).expand(5, 24), *call.tensors[1:], *call.options)
        x = torch.randn(5, 24, device=DEVICE)
        before = x.clone()
        with pytest.raises(ValueError, match="bias must not overlap x"):
            function(x, x[2], *rest, *call.options)
        assert torch.equal(x, before)

    # -------------------------------------------------------------------------------------------------- gradients

    @kernel_backend
    @pytest.mark.parametrize("dtype", testing.FLOAT_DTYPES, ids=str)
    def test_gradients_of_every_shape(self, backend, dtype):
        cases = [Case(s, dtype) for s in [(0, 5), (5, 0), (1, 7), (3, 1025), (70, 9), (600, 4), (7,), (2, 3, 8)]]
        cases += [Case((17, 24), dtype, layout) for layout in ("transposed", "expanded", "misaligned")]
        # Beyond every bend of the activations; where a derivative is a difference of large numbers it may not be NaN.
        cases += [Case((13, 40), dtype, values=values) for values in ("large", "huge")]
        if DEVICE.type == "cuda":
            cases += [Case((4096, 512), dtype), Case((2049, 1023), dtype), Case((65536, 8), dtype)]
        for case, option in itertools.product(cases, range(len(self.options))):
            call = self.call(case, option)
            grad = Case(case.shape, dtype, case.layout).tensor(9, DEVICE)
            testing.check_gradients(self.op, self.function(backend), call, (True,) * len(call.tensors), grad)

    @kernel_backend
    def test_gradients_of_every_subset(self, backend):
        for option in range(len(self.options)):
            call = self.call(Case((33, 40)), option)
            for needed in itertools.product((False, True), repeat=len(call.tensors)):
                if any(needed):
                    grad = Case((33, 40), layout="transposed").tensor(9, DEVICE)
                    testing.check_gradients(self.op, self.function(backend), call, needed, grad)

    @kernel_backend
    def test_gradient_of_a_sum_is_expanded(self, backend):
        call = self.call(Case((33, 40)))
        grad = torch.ones((), device=DEVICE).expand(33, 40)
        testing.check_gradients(self.op, self.function(backend), call, (True,) * len(call.tensors), grad)

    @kernel_backend
    def test_gradients_are_repeatable(self, backend):
        call = self.call(Case((5000, 24)))
        grad = Case((5000, 24)).tensor(9, DEVICE)
        runs = [testing.gradients(self.function(backend), call, (True,) * len(call.tensors), grad) for _ in range(3)]
        for first, *others in zip(*runs, strict=True):
            assert all(torch.equal(first, other) for other in others)

    @kernel_backend
    def test_relu_stops_a_gradient_that_is_not_finite(self, backend):
        """Where relu's output is 0 eager gives 0, whatever comes in; where it is NaN, the gradient passes."""
        call = self.call()
        tensors = [torch.zeros_like(tensor) for tensor in call.tensors]
        tensors[0].copy_(torch.tensor([-1.0, 1.0, math.nan]).repeat(40).view(5, 24))
        grad = torch.tensor([math.inf, math.nan, 2.0, -math.inf], device=DEVICE).repeat(30).view(5, 24)
        call, needed = Call("", tuple(tensors), self.options[0]), (True,) + (False,) * (len(tensors) - 1)
        found, want = (
            testing.gradients(f, call, needed, grad)
            for f in (self.function(backend), self.function("eager"))
        )
        torch.testing.assert_close(found[0], want[0], equal_nan=True)

    @kernel_backend
    def test_gradcheck(self, backend):
        for option in range(len(self.options)):
            call = self.call(Case((3, 5), torch.float64), option)
            tensors = [tensor.requires_grad_() for tensor in call.tensors]
            # eps and the kink of relu: no |z| of these inputs is below 1e-3.
            assert torch.autograd.gradcheck(lambda *t, o=call.options: self.function(backend)(*t, *o), tensors)

    @kernel_backend
    def test_second_derivative_is_refused(self, backend):
        call = self.call()
        x = call.tensors[0].requires_grad_()
        out = self.function(backend)(*call.arguments())
        (grad,) = torch.autograd.grad((out * out).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=f"{self.op} has no second derivative"):
            grad.sum().backward()

    @kernel_backend
    @pytest.mark.parametrize("in_place", [False, True])
    def test_forward_mode_is_refused(self, backend, in_place):
        call, function = self.call(), self.function(backend, in_place)
        for index, tensor in enumerate(call.tensors):
            with torch.no_grad(), torch.autograd.forward_ad.dual_level():
                tensors = list(call.tensors)
                tensors[index] = torch.autograd.forward_ad.make_dual(tensor, torch.ones_like(tensor))
                with pytest.raises(RuntimeError, match=f"{self.op}_? has no forward-mode derivative"):
                    function(*tensors, *call.options)
                function(*call.arguments())  # of which none has a tangent
        if not in_place:
            with pytest.raises(RuntimeError, match=f"{self.op} has no forward-mode derivative"):
                torch.func.jvp(
                    lambda x: function(x, *call.tensors[1:], *call.options), call.tensors[:1], call.tensors[:1]
                )

    # ------------------------------------------------------------------------------------------------ wrong input

    @every_backend
    @pytest.mark.parametrize("in_place", [False, True])
    def test_wrong_input(self, backend, in_place):
        function = self.function(backend, in_place)
        x, bias, *rest = self.call().arguments()
        wrong = [
            ((x, bias.double(), *rest), TypeError, "bias must have x's dtype, float32; got float64"),
            ((x.int(), bias.int(), *rest), TypeError, "x must be float32, .*; got (int32|Int)"),
            ((x, bias[:-1], *rest), ValueError, r"bias must have shape \[24\].*; got \[23\]"),
            ((x, bias[None], *rest), ValueError, r"bias must have shape \[24\].*; got \[1, 24\]"),
            ((x[0, 0], bias, *rest), ValueError, "x must have at least one dimension"),
            ((x, bias.to("meta"), *rest), ValueError, "bias must be on x's device, (cpu|cuda:0); got meta"),
            ((x, bias.cpu().numpy(), *rest), TypeError, "bias must be a tensor; got ndarray"),
            ((x, None, *rest), TypeError, "bias must be a tensor; got NoneType"),
            *self.wrong_input(x, bias, *rest),
        ]
        before = x.clone()
        for arguments, error, message in wrong:
            with pytest.raises(error, match=f"{self.op}_?: {message}"):
                function(*arguments)
        assert torch.equal(x, before)
        with pytest.raises(TypeError, match="x must be a tensor; got NoneType"):
            function(None, bias, *rest)

    def wrong_input(self, x, bias):
        return []

    @pytest.mark.parametrize("in_place", [False, True])
    def test_unknown_and_missing_backends(self, in_place):
        call = self.call()
        with pytest.raises(ValueError, match="backend must be one of auto, eager, triton, cuda; got 'cudnn'"):
            self.function("cudnn", in_place)(*call.arguments())
        if DEVICE.type == "cpu":
            with pytest.raises(RuntimeError, match=r'backend="cuda" does not run here: .*CUDA'):
                self.function("cuda", in_place)(*call.arguments())

    # --------------------------------------------------------------------------------- autocast, compile, export

    @every_backend
    def test_autocast_casts_mixed_dtypes(self, backend):
        call = self.call()
        tensors = [call.tensors[0].bfloat16().requires_grad_(), *(t.requires_grad_() for t in call.tensors[1:])]
        with torch.autocast(DEVICE.type, torch.bfloat16):
            out = self.function(backend)(*tensors, *call.options)
        same = self.function(backend)(*(t.bfloat16() for t in tensors), *call.options)
        assert out.dtype == torch.bfloat16
        assert torch.equal(out, same)
        out.float().sum().backward()
        assert [t.grad.dtype for t in tensors] == [t.dtype for t in tensors]
        with torch.autocast(DEVICE.type, torch.bfloat16), torch.no_grad():
            compiled = torch.compile(self.function(backend), fullgraph=True, backend="aot_eager")
            assert torch.equal(compiled(*tensors, *call.options), same)
            x = tensors[0].clone()
            assert self.function(backend, in_place=True)(x, *tensors[1:], *call.options) is x
            assert torch.equal(x, same)
            assert self.function(backend)(*self.call().arguments()).dtype == torch.float32

    @kernel_backend
    def test_opcheck(self, backend):
        for option in range(len(self.options)):
            call = self.call(option=option)
            torch.library.opcheck(self.dispatcher_op(backend), call.arguments())
            torch.library.opcheck(self.dispatcher_op(backend, "_"), call.arguments())
            torch.library.opcheck(self.dispatcher_op(backend, "backward"), self.backward_arguments(call))
            with_gradients = [tensor.clone().requires_grad_() for tensor in call.tensors]
            torch.library.opcheck(self.dispatcher_op(backend), (*with_gradients, *call.options))

    @kernel_backend
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compile_keeps_one_graph(self, backend, dynamic):
        compiler = "inductor" if DEVICE.type == "cuda" else "aot_eager"
        for option in range(len(self.options)):
            torch._dynamo.reset()
            call = self.call(Case((6, 40)), option)

            def step(*tensors, options=call.options):
                return 2 * self.function(backend)(*tensors, *options)

            compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=compiler)
            for case in (Case((6, 40)), Case((7, 40))):
                call = self.call(case, option)
                grad, needed = case.tensor(9, DEVICE), (True,) * len(call.tensors)
                call = Call("", call.tensors)
                found, want = (testing.gradients(f, call, needed, grad) for f in (compiled, step))
                assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
                assert torch.equal(compiled(*call.tensors), step(*call.tensors))

    @kernel_backend
    def test_compile_in_place(self, backend):
        call = self.call()

        def step(*tensors):
            return self.function(backend, in_place=True)(2 * tensors[0], *tensors[1:], *call.options)

        compiler = "inductor" if DEVICE.type == "cuda" else "aot_eager"
        compiled = torch.compile(step, fullgraph=True, backend=compiler)
        assert torch.equal(compiled(*call.tensors), step(*call.tensors))

    @kernel_backend
    def test_export(self, backend):
        call = self.call()
        function = self.function(backend)

        class Module(torch.nn.Module):
            def forward(self, *tensors):
                return function(*tensors, *call.options)

        program = torch.export.export(Module(), call.tensors)
        assert any(self.op in str(node.target) for node in program.graph.nodes)
        assert torch.equal(program.module()(*call.tensors), function(*call.arguments()))

    # ------------------------------------------------------------------------------------------------ on a GPU

    @GPU
    @pytest.mark.sanitizer
    @kernel_backend
    def test_under_the_sanitizer(self, backend):
        """A few shapes, for compute-sanitizer: every path of the kernels, forward, in place and backward."""
        cases = [Case((3, 1025)), Case((1031, 1024)), Case((17, 24), layout="misaligned")]
        cases += [Case((520, 8), torch.bfloat16)]
        testing.check(self.op, self.function(backend), cases=cases)
        testing.check(self.op + "_", self.function(backend, in_place=True), cases=cases)
        for case, option in itertools.product(cases, range(len(self.options))):
            call = self.call(case, option)
            testing.check_gradients(
                self.op, self.function(backend), call, (True,) * len(call.tensors), case.tensor(9, DEVICE)
            )

    @GPU
    @kernel_backend
    def test_capture_in_a_cuda_graph(self, backend):
        call = self.call(Case((300, 1023)))
        function = self.function(backend)
        with torch.no_grad():
            function(*call.arguments())
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = function(*call.arguments())
        call.tensors[0].copy_(torch.randn_like(call.tensors[0]))
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, function(*call.arguments()))

    @GPU
    @kernel_backend
    def test_side_stream_with_a_delayed_producer(self, backend):
        """Launched on any other stream, the op would read what was there before the producer wrote."""
        call = self.call(Case((1000, 1024)))
        fresh = torch.randn_like(call.tensors[0])
        want = self.function(backend)(fresh, *call.tensors[1:], *call.options)
        grad, needed = torch.randn_like(fresh), (True,) * len(call.tensors)
        ready = Call("", (fresh, *call.tensors[1:]), call.options)
        want_grads = testing.gradients(self.function(backend), ready, needed, grad)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            call.tensors[0].copy_(fresh)
            out = self.function(backend)(*call.arguments())
            grads = testing.gradients(self.function(backend), call, needed, grad)
        stream.synchronize()
        assert torch.equal(out, want)
        assert all(torch.equal(a, b) for a, b in zip(grads, want_grads, strict=True))

    @GPU
    @kernel_backend
    @pytest.mark.parametrize("shape", [(2**21 + 3, 1025), (3, 2**30 + 8), (2**31 + 8,)], ids=str)
    def test_more_than_2_to_the_31_elements(self, backend, shape):
        elements, columns = math.prod(shape), shape[-1]
        rows = elements // columns
        assert elements > 2**31
        tensors = len(self.call().tensors)
        gc.collect()
        torch.cuda.empty_cache()  # the memory that other tests left is not free to the driver
        needed = 2 * elements * (tensors + 4)  # out, the gradient that comes in, the one of x, what it should be
        if torch.cuda.mem_get_info()[0] < 1.2 * needed:
            pytest.skip(f"needs {1.2 * needed / 2**30:.0f} GiB of free GPU memory")
        generator = torch.Generator(DEVICE).manual_seed(0)
        draw = functools.partial(torch.randn, device=DEVICE, dtype=torch.float16, generator=generator)
        x, bias, rest = draw(shape), draw(columns), [draw(shape) for _ in range(tensors - 2)]
        out = self.function(backend)(x, bias, *rest, *self.options[0])
        # All of the output, a slice at a time: the float64 reference of the whole would not fit.
        flat = [tensor.view(-1) for tensor in (x, out, *rest)]
        for start in [*range(0, elements, 2**28)]:
            end = min(start + 2**28, elements)
            column = torch.arange(start, end, device=DEVICE) % columns
            call = Call("", (flat[0][start:end], bias[column], *(t[start:end] for t in flat[2:])), self.options[0])
            testing.compare(flat[1][start:end], testing.expected(self.op, call))
        call = Call("", (x, bias, *rest), self.options[0])
        grad = draw(shape)
        found = testing.gradients(self.function(backend), call, (True, True) + (False,) * len(rest), grad)
        of_relu = torch.where(out > 0, grad, 0)  # the first of the options is relu
        assert torch.equal(found[0], of_relu)
        if rows == 1:
            assert torch.equal(found[1], of_relu)
        else:  # summed in float32, and what the terms cancel to may be small
            atol = max(1e-5, torch.finfo(torch.float32).eps * rows)
            testing.compare(found[1], of_relu.sum(0, dtype=torch.float64).half(), rtol=1e-3, atol=atol)
        del grad, found, of_relu
        self.function(backend, in_place=True)(x, bias, *rest, *self.options[0])
        assert torch.equal(x, out)

    @GPU
    @kernel_backend
    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
    def test_a_device_that_is_not_current(self, backend):
        call = self.call(device="cuda:1")
        assert torch.equal(
            self.function(backend)(*call.arguments()).cpu(), self.function(backend)(*self.call().arguments()).cpu()
        )
