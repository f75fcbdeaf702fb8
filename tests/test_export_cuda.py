"""A trained DLRM exported for a GPU: what it computes there, in Python and in C++, and what it says of other GPUs."""

import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from exported_models import for_gpu, trained, write
from test_export import rewritten
from test_serving_http import BINARY, as_binary, ask, connect, from_binary, serving
from test_serving_table import grown, inputs_and_answers, own_table

from data.cli import UserError
from kernels.ops.dlrm.cluster import CLUSTERS
from kernels.ops.dlrm.pair import PAIRS
from kernels.ops.dlrm.tile import TILES
from model.config import Precision
from model.export import MOST_OFF, SAMPLE_BATCHES, sample
from model.serving.exported import Exported
from model.serving.manifest import MANIFEST, ExportError
from model.serving.served import Served
from model.serving.table import Table, write_table

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
MOST = MOST_OFF["cuda", Precision.FP32]
MOST_GROWN = 16 << 20  # bytes: allocators take memory in blocks of 2 to 20 MB, and a runner's kernels are a block each


def is_near(actual, want):
    return actual.shape == want.shape and torch.allclose(actual, want, rtol=0, atol=MOST, equal_nan=True)


@pytest.fixture
def folder(exported_for_gpu):
    return exported_for_gpu


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copied")


@pytest.fixture
def tables(tmp_path):
    write_table(tmp_path / "own", own_table())
    write_table(tmp_path / "grown", grown())
    return tmp_path


only_none = pytest.mark.parametrize("exported_for_gpu", ["none"], indirect=True)


class TestExported:
    def test_its_probabilities_are_eagers(self, folder):
        exported, served = Exported(folder), Served(trained(), folder.name.removesuffix("-gpu"))
        samples = torch.load(folder / "samples.pt")
        assert [len(counts) for counts, *_ in samples] == [*SAMPLE_BATCHES]
        for *inputs, want in samples:
            assert is_near(exported(*inputs), want)  # of the GPU
            assert is_near(exported(*inputs), served(*inputs))  # of the CPU

    def test_sixteen_threads(self, folder):
        exported = Exported(folder)
        samples = torch.load(folder / "samples.pt")
        with ThreadPoolExecutor(16) as pool:
            answers = [*pool.map(lambda i: exported(*samples[i % len(samples)][:-1]), range(320))]
        assert all(is_near(answer, samples[i % len(samples)][-1]) for i, answer in enumerate(answers))

    def test_a_threads_first_batch_has_no_rows(self, folder):
        exported = Exported(folder)
        *inputs, want = torch.load(folder / "samples.pt")[0]
        assert want.shape == (0,)
        with ThreadPoolExecutor(1) as pool:
            assert is_near(pool.submit(exported, *inputs).result(), want)

    @only_none
    def test_inputs_that_it_does_not_take(self, folder):
        counts, ids = sample(Served(trained()), 8, 0)
        with pytest.raises(ExportError, match="ids: expected a tensor of the CPU; got one of cuda:0"):
            Exported(folder)(counts, ids.cuda())

    def test_new_ids_have_rows_after_a_reload(self, folder, tables):
        exported = Exported(folder)
        inputs, before, after = inputs_and_answers(folder.name.removesuffix("-gpu"))
        assert not is_near(before, after)
        for table, want in (("grown", after), ("own", before), ("grown", after)):
            exported.reload(Table(tables / table))
            assert is_near(exported(*inputs), want)

    @only_none
    def test_each_call_has_one_table(self, folder, tables):
        exported = Exported(folder)
        inputs, before, after = inputs_and_answers()
        own, other = Table(tables / "own"), Table(tables / "grown")
        outcomes, ends = [], threading.Event()

        def call():
            while not ends.is_set():
                answer = exported(*inputs)
                outcomes.append((is_near(answer, before), is_near(answer, after)))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for table, want in ((other, after), (own, before)) * 10:
            exported.reload(table)
            outcomes.append((is_near(exported(*inputs), want), None))
        ends.set()
        for thread in threads:
            thread.join()
        assert {*outcomes} == {(True, False), (False, True), (True, None)}

    def test_it_opens_no_file_after_it_was_loaded(self, copied, folder, tables):
        exported = Exported(copied)
        shutil.rmtree(copied)
        for *inputs, want in torch.load(folder / "samples.pt"):
            assert is_near(exported(*inputs), want)
        exported.reload(Table(tables / "grown"))
        inputs, _, after = inputs_and_answers(folder.name.removesuffix("-gpu"))
        assert is_near(exported(*inputs), after)

    @pytest.mark.heavy  # it reads how much of the GPU's memory is taken, by whomever
    @only_none
    def test_reloads_do_not_grow_the_gpus_memory(self, folder, tables):
        exported, inputs = Exported(folder), inputs_and_answers()[0]
        own, other = Table(tables / "own"), Table(tables / "grown")
        used = []
        for _ in range(25):
            for table in (own, other):
                exported.reload(table)
                exported(*inputs)
                torch.cuda.synchronize()
                used.append(torch.cuda.mem_get_info()[0])
        assert used[4] - used[49] < MOST_GROWN, used

    @only_none
    def test_what_was_loaded_leaves_the_gpu(self, folder, tables):
        def load():
            exported = Exported(folder)
            exported.reload(Table(tables / "grown"))
            return torch.cuda.memory_allocated()

        loaded = [load() for _ in range(6)]
        assert loaded[-1] == loaded[1], loaded

    @only_none
    def test_a_package_for_another_gpu(self, copied):
        with pytest.raises(ExportError, match=r"is to run on GPU 99, and this machine's are 0 to \d+"):
            Exported(copied, gpu=99)
        path = copied / MANIFEST
        own = re.search("gpu\t(.*)\n", path.read_text())[1]
        path.write_text(path.read_text().replace(f"gpu\t{own}\n", ""))
        with pytest.raises(ExportError, match="not whole: no line of the code in package/"):
            Exported(copied)
        (copied / f"package_{own}").rename(copied / "package")
        path.write_text(path.read_text().replace(f"package_{own}/", "package/"))
        for_gpu(copied, "sm_35")
        with pytest.raises(ExportError, match=f"made for a GPU of sm_35, and GPU 0 here is {own}"):
            Exported(copied)

    @only_none
    def test_no_gpu(self, folder):
        code = f"from model.serving.exported import Exported; Exported({str(folder)!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        )
        assert re.search("ExportError: .*: made for a GPU, sm_.* finds none here", done.stderr), done.stderr

    @only_none
    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second CUDA device")
    def test_another_gpu_than_the_current_one(self, folder, tables):
        exported = Exported(folder, gpu=1)
        for *inputs, want in torch.load(folder / "samples.pt"):
            assert is_near(exported(*inputs), want)
        exported.reload(Table(tables / "grown"))
        assert torch.cuda.current_device() == 0


# In each precision a model whose kernel takes tiles of rows; in full float32 one whose kernel has a row a lane; and
# models that no one kernel takes.
MAIN = {"bottom": (13, 512, 256, 64, 16), "top": (512, 256, 1)}
PRECISIONS = {
    "tf32": ("none", Precision.TF32, MAIN), "bf16": ("none", Precision.BF16, MAIN),
    "small": ("none", Precision.BF16, {}),
    "lanes": ("none", Precision.FP32, {}), "layers": ("none", Precision.FP32, MAIN),
    "bags": ("sum", Precision.BF16, MAIN),
}  # fmt: skip
ONE_KERNEL = {"tf32", "bf16", "small", "lanes"}


def at_once():
    """How many blocks run at once on this GPU, and clusters of eight, one at least."""
    count = torch.cuda.get_device_properties(0).multi_processor_count
    return count, max(1, count // 8 - 1)


def written(name, built_once):
    """The folder of one of PRECISIONS."""
    pooling, precision, changes = PRECISIONS[name]
    return built_once(f"gpu-{name}", lambda path: write(path, pooling, "cuda", precision, **changes))


@pytest.fixture(scope="session", params=[*PRECISIONS])
def in_precision(request, built_once):
    """(the folder, its name, pooling, precision and changes of the model)."""
    return written(request.param, built_once), request.param, *PRECISIONS[request.param]


class TestPrecisions:
    def test_its_error_is_what_the_manifest_says(self, in_precision):
        folder, name, pooling, precision, changes = in_precision
        exported, served = Exported(folder), Served(trained(**changes), pooling)
        exactness = exported.manifest.exactness
        assert exactness.precision is precision
        assert (exactness.absolute > 1e-5) is (precision is not Precision.FP32), "it computes in another precision"
        assert ("laid_out" in {constant.name for constant in exported.manifest.constants}) is (name in ONE_KERNEL)
        off = 0.0
        for *inputs, _ in torch.load(folder / "samples.pt"):
            errors = (exported(*inputs).double() - served.exactly(*inputs)).abs()
            off = max(off, errors.max().item() if len(errors) else 0.0)
        assert off == pytest.approx(exactness.absolute, rel=0.01, abs=1e-7)

    def test_any_number_of_rows(self, in_precision):
        """At the ends of what clusters, pairs and tiles of each number of rows take, and where blocks take several
        tiles."""
        folder, _, pooling, precision, changes = in_precision
        exported, served = Exported(folder), Served(trained(**changes), pooling)
        blocks, clusters = at_once()
        ends = (8 * clusters, 16 * clusters, 8 * blocks, 16 * blocks)
        for rows in (1, 7, 8, 9, *ends, *(end + 1 for end in ends), 100 * blocks + 3):
            inputs = sample(served, rows, rows)
            answers = exported(*inputs)
            assert (answers.double() - served.exactly(*inputs)).abs().max() <= MOST_OFF["cuda", precision]
            assert torch.equal(answers, exported(*inputs)), "every run gives the same bits"

    @pytest.mark.parametrize("options", [(), ("--threads", 4), ("--plain",)], ids=str)
    def test_in_cpp(self, runner, in_precision, options):
        folder, _, _, precision, _ = in_precision
        done = runner(folder, "--check", *options)
        assert (done.returncode, done.stdout.count("eager's")) == (0, len(SAMPLE_BATCHES)), done.stdout + done.stderr
        assert re.search(f"ready after \\d+ ms, in {precision}\n", done.stderr), done.stderr
        assert "failed" not in done.stderr

    def test_new_ids_have_rows_after_a_reload(self, in_precision, tables):
        folder, _, pooling, precision, changes = in_precision
        if changes or pooling != "none":
            pytest.skip("the tables of ids are another model's")
        exported = Exported(folder)
        inputs, before, after = inputs_and_answers()
        for table, want in (("grown", after), ("own", before)):
            exported.reload(Table(tables / table))
            torch.testing.assert_close(exported(*inputs), want, rtol=0, atol=MOST_OFF["cuda", precision])

    def test_one_kernel_is_launched(self, in_precision):
        folder, name, pooling, _, changes = in_precision
        exported, served = Exported(folder), Served(trained(**changes), pooling)
        _, clusters = at_once()
        few, many = TILES, TILES
        if torch.cuda.get_device_capability() == (9, 0):
            few, many = CLUSTERS, PAIRS if changes is MAIN else TILES
        for rows, wanted in ((1, few), (8 * clusters + 1, few), (16 * clusters + 1, many)):
            inputs = sample(served, rows, rows)
            exported(*inputs)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                exported(*inputs)
            kernels = [event.name for event in profiler.events() if event.device_type == torch.profiler.DeviceType.CUDA]
            own = [kernel for kernel in kernels if kernel.startswith("dlrm_forward")]
            assert own == ([] if name not in ONE_KERNEL else ["dlrm_forward" if name == "lanes" else wanted]), kernels
            products = [kernel for kernel in kernels if "gemm" in kernel.lower() or "cutlass" in kernel.lower()]
            assert not products or name not in ONE_KERNEL, products

    def test_two_models_in_one_process(self, built_once):
        folders = [written(name, built_once) for name in ("tf32", "bf16")]
        both = [Exported(folder) for folder in folders]
        for exported, folder in zip(both, folders, strict=True):
            *inputs, want = torch.load(folder / "samples.pt")[3]
            most = exported.manifest.exactness.most_off
            torch.testing.assert_close(exported(*inputs), want, rtol=0, atol=most)

    def test_bags_are_not_in_tf32(self, tmp_path):
        with pytest.raises(UserError, match="--precision tf32: bags of ids are not looked up by the one kernel"):
            write(tmp_path / "out", "sum", "cuda", Precision.TF32)


# What stands between run_exported and CUDA's runtime: a capture that fails, a graph that does nothing, or a count.
BETWEEN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static int launches;
int cudaStreamBeginCapture(void* stream, int mode) {
    if (getenv("FAIL_CAPTURE")) return 900;
    return ((int (*)(void*, int))dlsym(RTLD_NEXT, "cudaStreamBeginCapture"))(stream, mode);
}
int cudaGraphLaunch(void* graph, void* stream) {
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    if (getenv("SKIP_LAUNCH")) return 0;
    return ((int (*)(void*, void*))dlsym(RTLD_NEXT, "cudaGraphLaunch"))(graph, stream);
}
int cudaMemGetInfo(size_t* free, size_t* total) {
    if (getenv("FAIL_MEMORY")) return 700;
    return ((int (*)(size_t*, size_t*))dlsym(RTLD_NEXT, "cudaMemGetInfo"))(free, total);
}
__attribute__((destructor)) static void tell(void) { fprintf(stderr, "graphs launched: %d\\n", launches); }
"""


@pytest.fixture(scope="session")
def between(tmp_path_factory):
    folder = tmp_path_factory.mktemp("between")
    (folder / "between.c").write_text(BETWEEN)
    command = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", folder / "between.c", "-o", folder / "between.so"]
    subprocess.run([*command, "-ldl"], check=True)
    return folder / "between.so"


@pytest.fixture
def runner(serving_programs):
    def run(*arguments, **environment):
        command = [serving_programs / "run_exported", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)

    return run


class TestInCpp:
    @pytest.mark.parametrize("options", [(), ("--threads", 16), ("--plain",), ("--gpu", 0)], ids=str)
    def test_the_samples_probabilities_are_eagers(self, runner, between, folder, options):
        done = runner(folder, "--check", *options, LD_PRELOAD=str(between))
        assert (done.returncode, done.stdout.count("eager's")) == (0, len(SAMPLE_BATCHES)), done.stdout + done.stderr
        assert "failed" not in done.stderr
        launched = int(re.search(r"graphs launched: (\d+)", done.stderr)[1])
        if options == ("--plain",) or folder.name.startswith("sum"):
            assert launched == 0
        else:  # of each number of rows but 0: once behind its capture, and once for the third call
            assert launched >= 2 * (len(SAMPLE_BATCHES) - 1)

    @only_none
    @pytest.mark.parametrize(
        ("fault", "why"), [("FAIL_CAPTURE", "operation not permitted"), ("SKIP_LAUNCH", "its answers are others")]
    )
    @pytest.mark.parametrize("threads", [1, 16])
    def test_a_graph_that_fails(self, runner, between, folder, fault, why, threads):
        done = runner(folder, "--check", "--threads", threads, LD_PRELOAD=str(between), **{fault: "1"})
        assert (done.returncode, done.stdout.count("eager's")) == (0, len(SAMPLE_BATCHES)), done.stdout + done.stderr
        assert len(re.findall(f"a CUDA graph of 1 rows failed, calls go on without graphs: .*{why}", done.stderr)) == 1

    def test_inputs_from_a_file(self, runner, folder, tmp_path):
        inputs = sample(Served(trained(), folder.name.removesuffix("-gpu")), 33, 5)
        torch.save(inputs, tmp_path / "inputs.pt")
        done = runner(folder, "--inputs", tmp_path / "inputs.pt")
        assert is_near(torch.tensor([float(line) for line in done.stdout.split()]), Exported(folder)(*inputs))

    def test_a_reload(self, runner, folder, tables):
        inputs, before, after = inputs_and_answers(folder.name.removesuffix("-gpu"))
        torch.save(inputs, tables / "inputs.pt")
        for table, want in (("own", before), ("grown", after)):
            done = runner(folder, "--inputs", tables / "inputs.pt", "--reload", tables / table)
            assert is_near(torch.tensor([float(line) for line in done.stdout.split()]), want), done.stderr

    @pytest.mark.heavy  # it reads how much of the GPU's memory is taken, by whomever
    def test_reloads_under_load(self, runner, folder, tables):
        done = runner(folder, "--bench", "--check", "--threads", 12, "--reload", tables / "own")
        assert done.returncode == 0, done.stdout + done.stderr
        told = re.findall(
            r"12 threads: 100 reloads in \d+ calls.* after 5 and 50 of them: (\d+) and (\d+) MB", done.stdout
        )
        assert len(told) == len(SAMPLE_BATCHES)
        # The first two do not count: a lane may make its graph after the 5th.
        assert all((int(after) - int(before)) << 20 < MOST_GROWN for before, after in told[2:]), done.stdout

    @only_none
    def test_many_numbers_of_rows(self, runner, between, copied):
        samples = {rows: sample(Served(trained()), rows, rows) for rows in (*range(1, 41), 300, 5000, 16384, 16385)}
        exported = Exported(copied)
        samples = [[*inputs, exported(*inputs)] for inputs in samples.values()]
        torch.save([*samples, *samples[:40]], copied / "samples.pt")
        (copied / MANIFEST).write_text(rewritten(copied).text())
        done = runner(copied, "--check", LD_PRELOAD=str(between))
        assert (done.returncode, done.stdout.count("eager's")) == (0, 84), done.stdout + done.stderr
        assert "failed" not in done.stderr
        # Three calls of each sample but that of 16385 rows, and the one that was made first. The first call of each
        # power of two is plain, and so is the second one, behind which the graph is made and launched.
        powers = 7 + 3
        assert int(re.search(r"graphs launched: (\d+)", done.stderr)[1]) == 3 * 83 + 1 - powers

    @only_none
    def test_a_package_for_another_gpu(self, runner, copied):
        for gpu in (99, 255, 256):
            done = runner(copied, "--gpu", gpu)
            assert re.search(rf"is to run on GPU {gpu}, and this machine's are 0 to \d+", done.stderr), done.stderr
        done = runner(copied, CUDA_VISIBLE_DEVICES="")
        assert re.search("made for a GPU, sm_.*, and none is here, or no driver", done.stderr), done.stderr
        path = copied / MANIFEST
        own = re.search("gpu\t(.*)\n", path.read_text())[1]
        (copied / f"package_{own}").rename(copied / "package")
        path.write_text(path.read_text().replace(f"gpu\t{own}\n", "").replace(f"package_{own}/", "package/"))
        for_gpu(copied, "sm_35")
        assert f"made for a GPU of sm_35, and GPU 0 here is {own}" in runner(copied).stderr

    @only_none
    def test_over_http(self, serving_programs, folder, copied):
        if not (serving_programs / "serve_exported").exists():
            pytest.skip("cpp-httplib's or nlohmann-json's headers are missing: serve_exported was not built")
        samples = torch.load(folder / "samples.pt")
        with serving(serving_programs / "serve_exported", copied) as process:
            shutil.rmtree(copied)

            def client(_):
                connection = connect(process)
                for *inputs, want in samples * 3:
                    status, body = ask(connection, as_binary(inputs), BINARY)
                    assert status == 200, body
                    assert is_near(from_binary(body), want)

            with ThreadPoolExecutor(16) as pool:
                assert len([*pool.map(client, range(16))]) == 16

    @only_none
    def test_a_gpu_that_fails_by_now(self, serving_programs, folder, between, monkeypatch):
        if not (serving_programs / "serve_exported").exists():
            pytest.skip("cpp-httplib's or nlohmann-json's headers are missing: serve_exported was not built")
        monkeypatch.setenv("LD_PRELOAD", str(between))
        monkeypatch.setenv("FAIL_MEMORY", "1")
        command = [serving_programs / "serve_exported", folder, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            process.port = int(process.stdout.readline().rpartition(":")[2])
            status, body = ask(connect(process), None, None, "/health", "GET")
            process.terminate()
        assert (status, b"CUDA error" in body) == (503, True), body
