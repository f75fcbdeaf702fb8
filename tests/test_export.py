"""A trained DLRM exported: what it computes, and what it says of folders and inputs that are not right."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from exported_models import CARDINALITIES, checkpoint, for_gpu, trained

from data.cli import UserError, user_errors
from kernels import runtime
from model import export
from model.dlrm import DLRM
from model.export import SAMPLE_BATCHES, sample
from model.hashing import Hash
from model.serving import exported
from model.serving.exported import Exported
from model.serving.manifest import MANIFEST, ExportError, File, Manifest
from model.serving.served import Served


def dense_of(counts):
    return torch.log1p(torch.nan_to_num(counts, nan=0.0).clamp(min=0))


@pytest.mark.parametrize("changes", [{}, {"sparse_gradients": False}, {"kernels": "fused"}], ids=str)
@pytest.mark.parametrize("hash_", [*Hash])
def test_a_checkpoint_gives_its_model(tmp_path, hash_, changes):
    dlrm = trained(hash_, **changes)
    loaded = DLRM.from_checkpoint(checkpoint(tmp_path / "best.pt", dlrm))
    counts, ids = sample(Served(loaded), 19, 0)
    torch.testing.assert_close(loaded.predict(counts.nan_to_num(), ids), dlrm.predict(counts.nan_to_num(), ids))
    assert not loaded.training


@pytest.mark.parametrize("hash_", [Hash.SORTED, Hash.MODULUS])
def test_raw_ids_are_taken_modulo_what_the_training_rows_were(hash_):
    dlrm = trained(hash_)
    plain = Served(dlrm)
    dlrm.hash_size = 301 * 14316557
    for served, same in ((Served(dlrm), True), (plain, False)):
        counts, ids = sample(plain, 50, 0)
        ids = ids.clamp(min=-1)
        raw = torch.where(ids >= 0, ids % dlrm.hash_size + dlrm.hash_size, ids)  # a missing id stays missing
        assert torch.equal(served(counts, raw), plain(counts, torch.where(ids >= 0, ids % dlrm.hash_size, ids))) is same


def test_a_checkpoint_of_another_model(tmp_path):
    dlrm = trained()
    path = checkpoint(tmp_path / "best.pt", dlrm)
    state = torch.load(path)
    state["config"]["model"]["cardinalities"] = (10, 1, 0, 299)
    torch.save(state, path)
    with pytest.raises(UserError, match=r"best\.pt: not a usable checkpoint: "):
        DLRM.from_checkpoint(path)


@pytest.mark.parametrize("hash_", [*Hash])
@pytest.mark.parametrize("pooling", ["none", "sum"])
def test_it_serves_what_was_trained(hash_, pooling):
    dlrm = trained(hash_)
    served = Served(dlrm, pooling)
    for seed, batch in enumerate((0, 1, 57)):
        counts, *ids = sample(served, batch, seed)
        torch.testing.assert_close(served(counts, *ids), dlrm.predict(dense_of(counts), *ids))


def test_a_mean_is_the_sum_by_the_number_of_ids():
    served, dlrm = Served(trained(), "mean"), trained()
    _, ids, offsets = sample(served, 9, 0)
    embeddings = []
    for bag in range(9 * len(CARDINALITIES)):
        feature, own = bag // 9, ids[offsets[bag] : offsets[bag + 1]]
        rows = dlrm.sparse_arch.table(feature)[dlrm.sparse_arch.hashes[feature](own)]
        embeddings.append(rows.mean(0) if len(own) else torch.zeros(16))
    pooled = served._pooled(ids, offsets, 9)
    torch.testing.assert_close(pooled, torch.stack(embeddings).view(len(CARDINALITIES), 9, 16).transpose(0, 1))


def test_ids_of_another_table_beyond_the_trained_rows_have_row_0():
    served = Served(trained())
    counts, ids = sample(served, 5, 0)
    want = served(counts, torch.full_like(ids, -1))
    served.slots[:, 1] += 1000  # rows that no table has
    assert torch.equal(served(counts, ids), want)


def test_an_unknown_pooling():
    with pytest.raises(ValueError, match="pooling must be one of none, sum, mean; got 'max'"):
        Served(trained(), "max")


@pytest.mark.parametrize("missing", ["CXX", "ninja", "a ninja that runs"])
def test_a_missing_program_is_said_before_any_work(tmp_path, monkeypatch, capsys, missing):
    """Without the ops' C++ their eager forms would be traced, which torch.export refuses in hundreds of lines."""
    out, (gcc, sh) = tmp_path / "out", map(shutil.which, ("g++", "sh"))
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "g++").symlink_to(gcc)
    (tools / "sh").symlink_to(sh)
    monkeypatch.setenv("CXX", "ccache-of-nobody g++" if missing == "CXX" else "g++")
    if missing != "CXX":
        monkeypatch.setattr(runtime, "path_with_python", lambda: str(tools))
    if missing == "a ninja that runs":
        (tools / "ninja").write_text("#!/nowhere/python\n")
        (tools / "ninja").chmod(0o755)
    says = {"CXX": "the C++ compiler ccache-of-nobody is missing (CXX is 'ccache-of-nobody g++')",
            "ninja": "ninja is missing: pip install ninja",
            "a ninja that runs": f"{tools / 'ninja'} does not run (No such file or directory): pip install ninja"}
    with pytest.raises(SystemExit) as ended, user_errors("model.export"):
        export.main(["--checkpoint", str(tmp_path / "not read yet.pt"), "--out", str(out)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"model.export: --out: {says[missing]}")
    assert not out.exists()


@pytest.fixture
def folder(exported_folder):
    return exported_folder


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copied")


def not_whole(folder):
    """Changes a copy of an exported folder in ways that a manifest must not allow, and yields why it is refused."""
    path = folder / MANIFEST
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        yield "not whole|format none"
    package = folder / Manifest.read(rewrite(path, whole)).package
    for name in ("other.so", "sub/other.cubin"):
        other = package / name
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"")
        yield f"not whole: no line of package/{name}"
        if name.endswith(".so"):
            rewrite(path, rewritten(folder).text())
            yield "two files of code: package/.* and package/"
            rewrite(path, whole)
        other.unlink()


def rewrite(path, text):
    path.write_text(text)
    return path.parent


@pytest.mark.slow
class TestExported:
    def test_its_probabilities_are_eagers(self, folder):
        exported = Exported(folder)
        samples = torch.load(folder / "samples.pt")
        assert [len(counts) for counts, *_ in samples] == [*SAMPLE_BATCHES]
        for *inputs, want in samples:
            assert torch.equal(exported(*inputs), want)

    def test_inputs_that_it_does_not_take(self, folder):
        exported = Exported(folder)
        counts, ids, *offsets = sample(Served(trained(), folder.name), 8, 0)
        for inputs, why in (
            ((counts,), "expected . inputs"),
            ((counts.double(), ids, *offsets), "counts: expected torch.float32; got torch.float64"),
            ((counts, ids.int(), *offsets), "ids: expected torch.int64; got torch.int32"),
            ((counts[:, :12], ids, *offsets), r"counts: expected \[B, 13\]"),
            ((counts[0], ids, *offsets), r"counts: expected \[B, 13\]; got \[13\]"),
            ((counts.t().contiguous().t(), ids, *offsets), "counts: expected a contiguous tensor"),
            ((counts.tolist(), ids, *offsets), "counts: expected a tensor; got list"),
        ):
            with pytest.raises(ExportError, match=why):
                exported(*inputs)
        if not offsets:
            with pytest.raises(ExportError, match=r"ids: expected \[B, 4\], B = 8; got \[7, 4\]"):
                exported(counts, ids[:7])
            return
        with pytest.raises(ExportError, match=r"offsets: expected \[4\*B\+1\], B = 8, N = \d+; got \[32\]"):
            exported(counts, ids, offsets[0][1:])
        wrong = offsets[0].clone()
        wrong[5] = len(ids) + 1
        with pytest.raises(ExportError, match=r"offsets\[6\] is"):
            exported(counts, ids, wrong)
        with pytest.raises(ExportError, match=r"offsets: expected 0 first and \d+ \(the number of ids\) last"):
            exported(counts, ids, torch.zeros_like(wrong))

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_a_folder_that_is_not_whole(self, copied):
        for file in Manifest.read(copied).files:
            path = copied / file.path
            whole = path.read_bytes()
            middle = len(whole) // 2
            if whole:
                path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
                with pytest.raises(ExportError, match=f"{path.name}: its bytes are not those that were exported"):
                    Exported(copied)
                path.write_bytes(whole[:-1])
                with pytest.raises(ExportError, match=f"{path.name}: .* bytes, and the manifest says {len(whole)}"):
                    Exported(copied)
            path.unlink()
            with pytest.raises(ExportError, match=f"{path.name}: cannot be read: No such file"):
                Exported(copied)
            path.write_bytes(whole)
        Exported(copied)

    @pytest.mark.parametrize(
        ("old", "new", "why"),
        [
            ("torch\t", "torch\t0.", "made by torch 0.2"),
            ("format\t2", "format\t3", "format 3, this reads 1 and 2"),
            ("input\tids\tint64", "input\tids\tint63", "not whole"),
            ("instructions", "instruction", "not whole"),
            ("file\tconstants/rows", "was\tconstants/rows", "not whole: no line of constants/rows"),
            ("file\tlibops.so", "was\tlibops.so", "not whole: no line of libops.so"),
            ("torch\t", "gpu\ntorch\t", "not whole"),
            ("torch\t", "gpu\tsm_90\ntorch\t", "not whole: no line of the code in package_sm_90/"),
        ],
    )
    def test_a_manifest_of_something_else(self, copied, old, new, why):
        path = copied / MANIFEST
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(ExportError, match=why):
            Exported(copied)

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_a_package_for_another_device(self, copied):
        with pytest.raises(ExportError, match="made for the CPU, and is to run on GPU 0"):
            Exported(copied, gpu=0)
        for_gpu(copied, "sm_35")
        with pytest.raises(ExportError, match=r"made for a GPU(, sm_35, and torch .* finds none| of sm_35)"):
            Exported(copied)
        path = copied / MANIFEST
        path.write_text(path.read_text().replace("gpu\tsm_35\n", ""))
        with pytest.raises(ExportError, match="not whole: no line of the code in package/"):
            Exported(copied)

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_files_and_lines_that_are_not_of_each_other(self, copied):
        for why in not_whole(copied):
            with pytest.raises(ExportError, match=why):
                Exported(copied)
        Exported(copied)

    def test_a_cpu_that_lacks_an_instruction(self, copied, monkeypatch):
        monkeypatch.setattr("model.serving.manifest._instructions", lambda: {"fma"})
        with pytest.raises(ExportError, match="made for x86-64-v3, and this CPU lacks abm, avx2"):
            Exported(copied)


@pytest.fixture
def runner(serving_programs):
    """run_exported: called with its arguments, it gives what came of them."""

    def run(*arguments, **options):
        command = [run.program, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)

    run.program = serving_programs / "run_exported"
    return run


@pytest.mark.slow
class TestInCpp:
    @pytest.mark.parametrize("threads", [1, 16])
    def test_the_samples_probabilities_are_eagers(self, runner, folder, threads):
        done = runner(folder, "--check", "--threads", threads)
        assert (done.returncode, done.stdout.count(": equal to eager's")) == (0, len(SAMPLE_BATCHES)), done.stderr

    @pytest.mark.parametrize(
        ("off", "code", "told"), [(2**-22, 0, "batch     2: eager's, off by 2.4e-07"), (2**-18, 1, "2: NOT eager's")]
    )
    def test_another_probability_is_told(self, runner, copied, off, code, told):
        path = copied / "samples.pt"
        samples = torch.load(path)
        samples[2][-1][0] += off
        torch.save(samples, path)
        (copied / MANIFEST).write_text(rewritten(copied).text())
        done = runner(copied, "--check")
        assert (done.returncode, done.stdout.count(told)) == (code, 1), done.stdout
        done = runner(copied, "--bench", "--threads", 2)
        told = "batch 2: a thread's last answer is another one"
        assert (done.returncode, told in done.stderr) == (2 * code, bool(code)), done.stderr

    def test_inputs_from_a_file(self, runner, folder, tmp_path):
        inputs = sample(Served(trained(), folder.name), 33, 5)
        torch.save(inputs, tmp_path / "inputs.pt")
        done = runner(folder, "--inputs", tmp_path / "inputs.pt")
        probabilities = torch.tensor([float(line) for line in done.stdout.split()])
        assert torch.equal(probabilities, Exported(folder)(*inputs))

    def test_inputs_that_it_does_not_take(self, runner, folder, tmp_path):
        counts, ids, *offsets = sample(Served(trained(), folder.name), 8, 0)
        cases = [
            ([counts], "expected . inputs; got 1"),
            ([counts.double(), ids, *offsets], "counts: expected Float; got Double"),
            ([counts, ids.int(), *offsets], "ids: expected Long; got Int"),
            ([counts[:, :12].contiguous(), ids, *offsets], r"counts: expected \[B, 13\], B = 8; got \[8, 12\]"),
            ([counts[0].clone(), ids, *offsets], r"counts: expected \[B, 13\]; got \[13\]"),
            ([counts.t().contiguous().t(), ids, *offsets], "counts: expected a contiguous tensor"),
            ([counts, 5], "expected a list of tensors"),
        ]
        if offsets:
            wrong = offsets[0].clone()
            wrong[5] = len(ids) + 1
            cases += [
                ([counts, ids, wrong], r"offsets\[6\] is"),
                ([counts, ids, torch.zeros_like(wrong)], r"offsets: expected 0 first and \d+"),
                ([counts, ids, offsets[0][1:].clone()], r"offsets: expected \[4\*B\+1\], B = 8, N = \d+; got \[32\]"),
            ]
        else:
            cases.append(([counts, ids[:7].clone()], r"ids: expected \[B, 4\], B = 8; got \[7, 4\]"))
        for number, (inputs, why) in enumerate(cases):
            path = tmp_path / f"{number}.pt"
            torch.save(inputs, path)
            done = runner(folder, "--inputs", path)
            assert done.returncode == 2, why
            assert re.search(why, done.stderr), done.stderr

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_a_folder_that_is_not_whole(self, runner, copied):
        for file in rewritten(copied).files:
            path = copied / file.path
            whole = path.read_bytes()
            middle = len(whole) // 2
            spoilt = [(whole[:-1], f"bytes, and the manifest says {len(whole)}"), (None, "cannot be read: No such")]
            if whole:
                changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
                spoilt.append((changed, "its bytes are not those that were exported"))
            for content, why in spoilt:
                path.unlink() if content is None else path.write_bytes(content)
                done = runner(copied)
                assert (done.returncode, path.name in done.stderr, why in done.stderr) == (2, True, True), done.stderr
                path.write_bytes(whole)
        assert runner(copied).returncode == 0

    @pytest.mark.parametrize(
        ("old", "new", "why"),
        [
            ("torch\t", "torch\t0.", "made by torch 0.2"),
            ("format\t2", "format\t3", "format 3, this reads 1 and 2"),
            ("input\tids\tint64", "input\tids\tint63", "not whole: input\tids\tint63"),
            ("file\tconstants/rows", "was\tconstants/rows", "not whole: no line of constants/rows"),
        ],
    )
    def test_a_manifest_of_something_else(self, runner, copied, old, new, why):
        path = copied / MANIFEST
        path.write_text(path.read_text().replace(old, new, 1))
        done = runner(copied)
        assert done.returncode == 2
        assert why in done.stderr

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_a_package_for_another_device(self, runner, copied):
        def told(*options):
            done = runner(copied, *options)
            assert done.returncode == 2
            return done.stderr

        assert "made for the CPU, and is to run on GPU 0" in told("--gpu", 0)
        for_gpu(copied, "sm_35")
        assert re.search("sm_35, and (this program was built without CUDA|none is here|GPU 0 here is)", told())
        path = copied / MANIFEST
        path.write_text(path.read_text().replace("gpu\tsm_35\n", ""))
        assert "not whole: no line of the code in package/" in told()

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_files_and_lines_that_are_not_of_each_other(self, runner, copied):
        for why in not_whole(copied):
            done = runner(copied)
            assert (done.returncode, bool(re.search(why, done.stderr))) == (2, True), (why, done.stderr)
        assert runner(copied).returncode == 0

    @pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
    def test_latency_of_inputs_from_a_file(self, runner, folder, tmp_path):
        torch.save(sample(Served(trained()), 33, 5), tmp_path / "inputs.pt")
        done = runner(folder, "--bench", "--inputs", tmp_path / "inputs.pt")
        told = r"(0\.\d+\n){33}batch    33, 1 threads: p50 [\d.]+ ms, p99 [\d.]+ ms, \d+ calls and .*\n"
        assert re.fullmatch(told, done.stdout)
        done = runner(folder, "--bench", "--check", "--inputs", tmp_path / "inputs.pt")
        checked = rf"(batch +\d+: .*eager.s.*\n){{{len(SAMPLE_BATCHES)}}}"
        assert (done.returncode, bool(re.fullmatch(told + checked, done.stdout))) == (0, True), done.stdout

    def test_it_needs_no_temporary_folder(self, runner, folder):
        done = runner(folder, "--check", env=os.environ | {"TMPDIR": "/nowhere"})
        assert done.returncode == 0, done.stderr

    def test_a_command_that_is_wrong(self, runner, folder):
        for arguments in ([], [folder, "--other"], [folder, "--threads"], [folder, "--threads", "0"], ["/nowhere"]):
            done = runner(*arguments)
            assert (done.returncode, done.stdout) == (2, ""), arguments
            assert done.stderr.startswith("run_exported: "), arguments

    def test_threads_that_cannot_all_be_made(self, runner, folder):
        limits = [f"--stack={2**31}", f"--as={2**36}"]  # of addresses, for half as many threads
        limited = ["prlimit", *limits, runner.program, folder, "--check", "--threads", "64"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run([*map(str, limited)], capture_output=True, text=True, timeout=300, env=environment)
        assert (done.returncode, "run_exported: Resource temporarily" in done.stderr) == (2, True), done.stderr

    def test_latency_and_throughput(self, runner, folder):
        done = runner(folder, "--bench", "--threads", 2)
        assert done.returncode == 0, done.stderr
        told = re.findall(r"2 threads: p50 [\d.]+ ms, p99 [\d.]+ ms, \d+ calls", done.stdout)
        assert len(told) == len(SAMPLE_BATCHES)

    def test_no_python_is_in_it(self, runner):
        listed = subprocess.run(["ldd", runner.program], capture_output=True, text=True)
        assert "libtorch_cpu" in listed.stdout
        assert "libpython" not in listed.stdout
        assert "libtorch_python" not in listed.stdout


def rewritten(folder):
    """The folder's manifest, with its files as they are now."""
    manifest = Manifest.read(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return replace(manifest, files=tuple(File.of(folder, path) for path in paths))


def test_a_torch_without_an_option_for_the_instructions(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "hasattr", lambda *_: False, raising=False)
    _, compiler = export._instructions(tmp_path)["cpp.cxx"]
    macros = subprocess.run([compiler, "-march=x86-64", "-dM", "-E", "-x", "c++", "/dev/null"], capture_output=True)
    assert b"__AVX2__ 1" in macros.stdout, macros.stderr


@pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")
def test_gpus_of_two_architectures_in_one_process(monkeypatch, tmp_path):
    monkeypatch.setattr(exported, "_architecture", "")
    monkeypatch.setattr(exported, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (9 - gpu, 0))
    for _ in range(2):
        assert exported._device(tmp_path, "sm_90", 0) == torch.device("cuda", 0)
    with pytest.raises(ExportError, match="for a GPU of sm_80, and this process has loaded one for sm_90"):
        exported._device(tmp_path, "sm_80", 1)
    for gpu in (2, 255, 256):
        with pytest.raises(ExportError, match=f"is to run on GPU {gpu}, and this machine's are 0 to 1"):
            exported._device(tmp_path, "sm_90", gpu)


@pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")
def test_a_gpu_that_is_not_here(tmp_path):
    with pytest.raises(UserError, match="--device cuda: this machine has 0 usable CUDA devices"):
        export.export(checkpoint(tmp_path / "best.pt", trained()), tmp_path / "out", device="cuda")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    with pytest.raises(UserError, match="is there already"):
        export.export(tmp_path / "none.pt", tmp_path)


def test_without_a_checkpoint_nothing_is_written(tmp_path):
    with pytest.raises(UserError, match="no such checkpoint"):
        export.export(tmp_path / "none.pt", tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("hash_size", [None, 1000])
def test_the_hash_size_of_a_checkpoint_from_before(tmp_path, monkeypatch, hash_size):
    sizes = []
    monkeypatch.setattr(export, "write", lambda served, folder, precision: sizes.append(served.hash_size))
    path = checkpoint(tmp_path / "best.pt", trained())
    options = ["--hash-size", str(hash_size)] if hash_size else []
    export.main(["--checkpoint", str(path), "--out", str(tmp_path / "out"), *options])
    assert sizes == [hash_size or 0]


def test_a_hash_size_that_is_none(tmp_path, capsys):
    for size in ("0", str(2**32 + 1)):
        with pytest.raises(SystemExit, match="2"):
            export.main(["--checkpoint", "a.pt", "--out", str(tmp_path / "out"), "--hash-size", size])
        assert f"argument --hash-size: expected 1 to {2**32}, got {size}" in capsys.readouterr().err


def test_a_command_that_exports_nothing(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        export.main(["--checkpoint", str(tmp_path / "none.pt")])
    assert capsys.readouterr().err == "python -m model.export: error: name a folder (--out), a file (--onnx) or both\n"


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_onnx_without_its_packages(tmp_path, monkeypatch, package):
    monkeypatch.delitem(sys.modules, "model.serving.onnx_file", raising=False)
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None if name == package else ModuleType(name))
    monkeypatch.setitem(sys.modules, "onnxscript.ir", None)
    with pytest.raises(UserError, match=f"--onnx: the package {package}(.ir)? is missing; requirements.txt has its"):
        export.export(tmp_path / "none.pt", onnx=tmp_path / "model.onnx")
    assert [*tmp_path.iterdir()] == []
