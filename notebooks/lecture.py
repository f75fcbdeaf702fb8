"""Execute the notebooks, each in a kernel of its own, and write pages: python notebooks/lecture.py [NN …].

Executed copies, pages and an index.html go to build/lecture/; the notebooks themselves change only with --store. What
their cells measure is kept in traces/results/<gpu>/ only with --record, on a GPU.
--survey executes nothing and says how long each is to read.

Two notebooks run at once. On a GPU, and with --store, they run one after the other, so as not to disturb the times that
they measure.
Exit status: 0 if all ran, 1 if one failed (the others still run), 2 for a wrong command line, 130 after Ctrl-C.
"""

import argparse
import asyncio
import html
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

try:
    import ipykernel.kernelspec
    import nbformat
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from nbformat import NotebookNode
    from traitlets.config import Config
except ModuleNotFoundError as error:
    sys.exit(f"lecture.py: {error.name} is not installed: pip install -r requirements.txt")

import survey

NOTEBOOKS = Path(__file__).resolve().parent
ROOT = NOTEBOOKS.parent
MAX_STORED_BYTES = 1_000_000
HAS_GPU = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
WIDGET = "application/vnd.jupyter.widget-view+json"
# A path that exists on one machine only, a temporary file of the kernel's included.
ABSOLUTE_PATH = re.compile(
    rf"{re.escape(str(ROOT))}[\w./-]*|(?<![\w.:/-])/(?:home|root|Users|opt|tmp|usr|var|mnt)/[\w.-][\w./-]*"
)
# What kernels.dispatch.build says of a build: of all runs, the first alone shows it.
BUILD = re.compile(r"(?:Building the extension \w+, once …|Built \w+ in [\d.]+ s)\n")
# What a package warns of at a line of its own, and that line.
WARNING = re.compile(r"^/\S+/site-packages/\S+:\d+: \w*Warning: .*\n(?:  .*\n)?", re.M)
# nbconvert's page, less what it would fetch from the web: only a page with formulas asks for MathJax.
PAGE_TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head_js_requirejs %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block html_head_js_mathjax %}{% if resources.has_formulas %}{{ super() }}{% endif %}{% endblock %}"""
INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Fused Kernels: the lecture</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60em; margin: 3em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; vertical-align: top; padding: .5em 1em .5em 0; border-bottom: 1px solid #ddd }}
.failed {{ color: #b00 }}
</style></head><body>
<h1>Fused Kernels: the lecture</h1>
<table><tr><th>Notebook</th><th>Seconds</th><th>Result</th><th>Executed copy</th></tr>
{rows}
</table></body></html>
"""
ROW = """<tr><td>{title}<br>{summary}</td><td>{seconds:.1f}</td><td class="{result}">{result}</td>
<td><a href="{name}.ipynb">{name}.ipynb</a></td></tr>"""


@dataclass(frozen=True)
class Run:
    """One executed notebook: its name, the seconds it took, and the error that ended it ('' if none)."""

    name: str
    notebook: NotebookNode
    seconds: float
    error: str

    @property
    def result(self) -> str:
        return "failed" if self.error else "ok"


class ThisPython(AsyncKernelManager):
    """Starts the Python that runs this file, whatever kernels lie in the user's home."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(resource_dir=ipykernel.kernelspec.RESOURCES, **ipykernel.kernelspec.get_kernel_dict())


class Client(NotebookClient):
    """Executes one notebook, in a thread: there nbclient sets no signal handlers, which only kill the kernel, so that
    Ctrl-C would look like a failed notebook. `stop`, from another thread, ends it."""

    stopped = False
    thread_loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        self.stopped = True
        self.shutdown_kernel = "immediate"
        if self.thread_loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the notebook has ended
                self.thread_loop.call_soon_threadsafe(self.task.cancel)

    async def run(self) -> None:
        self.task, self.thread_loop = asyncio.current_task(), asyncio.get_running_loop()
        if self.stopped:
            return
        try:
            await self.async_execute()
        finally:
            # Stopped while its kernel starts, nbclient leaves it running.
            if self.km is not None and self.km.has_kernel:
                await self.km.shutdown_kernel(now=True)


def client_of(path: Path) -> Client:
    """What executes a notebook, in a fresh kernel and in the notebook's folder. The file is only read.

    Raises:
        ValueError: it is no notebook. OSError: it cannot be read.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    return Client(
        notebook,
        kernel_manager_class=ThisPython,
        config=Config(KernelManager={"transport_encryption": "auto"}),  # unencrypted, each kernel prints a warning
        resources={"metadata": {"path": str(path.parent)}},
        startup_timeout=120,
        record_timing=False,
        coalesce_streams=True,
    )


def execute(client: Client, name: str, position: str) -> Run:
    """Execute a notebook. An error in a cell ends it; its traceback is then that cell's output."""
    if not client.stopped:
        print(f"{position} {name} ...\n", end="", flush=True)  # in one piece, beside other threads'
    start, failure = time.perf_counter(), ""
    try:
        asyncio.run(client.run())
    except CellExecutionError as error:
        failure = str(error)
    except (asyncio.CancelledError, RuntimeError) as error:
        # The kernel died: no cell holds this error, so the page would not show it.
        failure = f"{type(error).__name__}: {error}"
        output = nbformat.v4.new_output("error", ename=type(error).__name__, evalue=str(error), traceback=[failure])
        client.nb.cells.append(nbformat.v4.new_code_cell(outputs=[output]))
    return Run(name, client.nb, time.perf_counter() - start, re.sub(r"\x1b\[[0-9;]*m", "", failure).strip())


def execute_all(paths: list[Path], at_once: int) -> Iterator[tuple[str, Path, Run]]:
    """(position, path, run) of each notebook as it ends. Closed or interrupted, it stops those that run and says so."""
    clients = [client_of(path) for path in paths]
    with ThreadPoolExecutor(at_once) as pool:
        running = {}
        try:
            for number, (path, client) in enumerate(zip(paths, clients, strict=True), 1):
                position = f"[{number}/{len(paths)}]"
                running[pool.submit(execute, client, path.stem, position)] = position, path
            waiting = set(running)
            while waiting:
                # A signal that comes just before a wait begins is seen when the wait ends: so each is short.
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    yield *running[future], future.result()
        finally:
            if unfinished := [path.stem for future, (_, path) in running.items() if future.running()]:
                print(f"stopped in {', '.join(unfinished)}", file=sys.stderr)
            for client in clients:
                client.stop()


def heading(run: Run) -> tuple[str, str]:
    """(title, first paragraph in one line) of a notebook's first Markdown cell."""
    text = next((cell.source for cell in run.notebook.cells if cell.cell_type == "markdown"), "")
    title = re.search(r"^#+ +(.+)$", text, flags=re.M)
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^#+ .*$", "", text, flags=re.M).strip())
    plain = [re.sub(r"[*`]", "", " ".join(part.split())) for part in (title.group(1) if title else "", paragraphs[0])]
    return plain[0] or run.name, plain[1]


def render(run: Run, folder: Path) -> str:
    """The notebook as one HTML page, images included."""
    from nbconvert import HTMLExporter

    formulas = any(cell.cell_type == "markdown" and "$" in cell.source for cell in run.notebook.cells)
    resources = {"metadata": {"name": run.name, "path": str(folder)}, "has_formulas": formulas}
    page, _ = HTMLExporter(raw_template=PAGE_TEMPLATE, embed_images=True).from_notebook_node(run.notebook, resources)
    return re.sub(r'href="(\w+)\.ipynb', r'href="\1.html', page)  # links among the notebooks lead to their pages


def write(run: Run, folder: Path, out: Path) -> None:
    """Write the executed copy and, if nbconvert is installed whole, its page."""
    nbformat.write(run.notebook, out / f"{run.name}.ipynb")
    try:
        (out / f"{run.name}.html").write_text(render(run, folder), encoding="utf-8")
    except (ImportError, ValueError) as error:  # nbconvert, a part of it, or its templates are not installed
        (out / f"{run.name}.html").unlink(missing_ok=True)  # an earlier run's
        print(f"  no page: {error}")


def write_index(runs: list[Run], out: Path) -> None:
    rows = []
    for run in runs:
        title, summary = map(html.escape, heading(run))
        if (out / f"{run.name}.html").exists():
            title = f'<a href="{run.name}.html">{title}</a>'
        rows.append(ROW.format(title=title, summary=summary, seconds=run.seconds, result=run.result, name=run.name))
    (out / "index.html").write_text(INDEX.format(rows="\n".join(rows)), encoding="utf-8")


def store(run: Run, path: Path) -> str:
    """Write a run's outputs into the notebook itself, the same bytes for the same outputs; not what a build says, nor
    what packages warn of.

    Returns '' or why they cannot be stored: an error, a widget, a path of this machine, more than 1 MB.
    """
    if run.error:
        return "it failed"
    notebook = run.notebook
    kept = {key: value for key, value in notebook.metadata.items() if key not in {"widgets", "language_info"}}
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook.metadata = NotebookNode(kept | {"kernelspec": kernel, "language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells, 1):
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            for output in cell.outputs:
                if output.get("name") == "stderr":
                    output.text = WARNING.sub("", output.text)
            cell.outputs = [output for output in cell.outputs if not _only_says_a_build(output)]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if output.output_type == "error" or WIDGET in data:
                return f"cell {number} shows {'an error' if output.output_type == 'error' else 'a widget'}"
            texts = [str(value) for kind, value in data.items() if kind.startswith("text/") or "json" in kind]
            if match := ABSOLUTE_PATH.search("\n".join([output.get("text", ""), *texts])):
                return f"cell {number} shows the path {match.group()}"
    text = nbformat.writes(notebook) + "\n"
    if len(text.encode()) > MAX_STORED_BYTES:
        return f"it has {len(text.encode()):,} bytes, and {MAX_STORED_BYTES:,} are allowed"
    path.write_text(text, encoding="utf-8")
    return ""


def _only_says_a_build(output: NotebookNode) -> bool:
    return output.get("name") == "stderr" and not BUILD.sub("", output.text)


def keep(run: Run, folder: Path) -> str:
    """Copy what a run's cells measured from `folder` into traces/results/; returns '' or why it is not kept."""
    if run.error:
        return "it failed"
    from kernels.measure import records

    files = sorted(folder.glob(f"*/lecture_{run.name[:2]}.json"))
    done = [records.save(records.read(path)) for path in files]
    print("".join(f"  {words}\n" for words in done or ["measured nothing"]), end="", flush=True)
    return "; ".join(words for words in done if words.startswith("kept"))


def choose(folder: Path, names: list[str]) -> list[Path]:
    """The notebooks NN_*.ipynb of a folder whose name starts with one of `names` (all if there are none), in order.

    Raises:
        ValueError: a name fits no notebook, or there is none at all.
    """
    paths = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    for name in names or [""]:
        if not any(path.name.startswith(name) for path in paths):
            have = ", ".join(path.stem for path in paths) or "none"
            raise ValueError(f"no notebook {name or 'NN_*.ipynb'} in {folder}: there is {have}")
    return [path for path in paths if path.name.startswith(tuple(names or [""]))]


def table(runs: list[Run]) -> str:
    width = max(len(run.name) for run in runs)
    head = f"{'notebook':<{width}}  seconds  result"
    return "\n".join([head, *(f"{run.name:<{width}}  {run.seconds:7.1f}  {run.result}" for run in runs)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Execute the notebooks in order and write their pages.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only notebooks whose name starts so: 01 02")
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS, metavar="DIR", help="where they are")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "lecture", metavar="DIR", help="where pages go")
    parser.add_argument("--store", action="store_true", help="also write the outputs into the notebooks themselves")
    parser.add_argument("--record", action="store_true", help="on a GPU: also keep what the cells measure")
    parser.add_argument("--at-once", type=int, metavar="N", help="how many run at once (see above)")
    parser.add_argument("--survey", action="store_true", help="execute nothing: words, cells, minutes of each")
    args = parser.parse_args(argv)
    folder = args.notebooks.resolve()
    try:
        paths = choose(folder, args.names)
        if args.survey:
            print(survey.table([survey.survey(path) for path in paths]))
            return 0
        if args.record and not HAS_GPU:
            parser.error("--record: there is no NVIDIA GPU here")
        args.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    at_once = args.at_once or (1 if HAS_GPU or args.store else 2)

    runs: list[Run] = []
    failed = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory() as measured, closing(execute_all(paths, at_once)) as ended:
            if args.record:
                os.environ["LECTURE_RECORD"] = measured  # for lessons.shared.measure, in the notebooks' processes
            for position, path, run in ended:
                runs.append(run)
                print(f"{position} {path.stem} {run.result}, {run.seconds:.1f} s\n", end="", flush=True)
                if run.error:
                    print("\n".join("    " + line for line in run.error.splitlines()[-12:]), flush=True)
                write(run, folder, args.out)
                refused = store(run, path) if args.store else ""
                if refused:
                    print(f"  not stored: {refused}")
                unkept = keep(run, Path(measured)) if args.record else ""
                if unkept:
                    print(f"  not recorded: {unkept}")
                failed = failed or bool(run.error or refused or unkept)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError) as error:
        print(f"lecture.py: {error}", file=sys.stderr)
        return 1
    runs.sort(key=lambda run: run.name)
    write_index(runs, args.out)
    print(f"\n{table(runs)}\n\nPages: {os.path.relpath(args.out / 'index.html')}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
