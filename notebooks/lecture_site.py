"""Write the lecture as a site of static pages: python notebooks/lecture_site.py [--out DIR] [--repository OWNER/NAME].

build/site/ gets a page for each notebook, with the outputs that are stored in it (nothing is executed), one for each
README, and one for each file and folder that these link to, under the repository's own paths: so every link leads to a
page beside it, from a web server and from a disk. The pages load nothing from elsewhere. A search over all of them is
a script of web/ and an index that is a script too, since a page on a disk may not fetch a file.

What answers a prediction or a puzzle is folded, whether or not the notebook has it folded, and search does not find it.
With --repository, a notebook of HOSTED says how to open it in Colab.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import os
import re
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

try:
    import jinja2
    import mistune
    import nbformat
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexer import Lexer
    from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
    from pygments.util import ClassNotFound
except ModuleNotFoundError as error:
    sys.exit(f"lecture_site.py: {error.name} is not installed: pip install nbconvert")

import survey

NOTEBOOKS = Path(__file__).resolve().parent
ROOT, WEB = NOTEBOOKS.parent, NOTEBOOKS / "web"
# What the navigation has beside the notebooks.
TABLES = {
    "README.md": "Front page",
    "notebooks/README.md#glossary": "Glossary",
    "notebooks/README.md": "How the lecture works",
    "kernels/README.md": "The kernels",
    "model/README.md": "The model",
    "traces/README.md": "The records",
    "data/README.md": "The data",
    "tests/README.md": "The tests",
    "CONTRIBUTING.md": "Contributing",
}
INDEX = "search_index.js"
HOSTED = ("notebooks/08_triton_kernels.ipynb",)


@dataclass
class Page:
    """One page: where it comes from in the repository ("" for the search), what it shows, and its headings:
    (level, id, text)."""

    path: str
    title: str
    body: str
    contents: list[tuple[int, str, str]] = field(default_factory=list)


class Renderer(mistune.HTMLRenderer):
    """Markdown as GitHub shows it: a heading has an id, code is coloured, a table scrolls by itself."""

    def __init__(self) -> None:
        super().__init__(escape=False)
        self.ids: Counter[str] = Counter()
        self.contents: list[tuple[int, str, str]] = []

    def heading(self, text: str, level: int, **_: Any) -> str:
        words = plain(text)
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")
        self.ids[anchor] += 1
        anchor += f"-{self.ids[anchor] - 1}" if self.ids[anchor] > 1 else ""
        self.contents.append((level, anchor, words))
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        return coloured(code, (info or "text").split()[0])

    def table(self, text: str) -> str:
        return f'<div class="wide"><table>\n{text}</table></div>\n'


def plain(markup: str) -> str:
    """The words of a piece of HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", markup)).split())


def coloured(code: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return highlight(code, lexer, HtmlFormatter())


@cache
def address(path: str) -> str:
    """Where the page of a file or folder lies: `a/b.ipynb` at a/b.html, a folder and its README at index.html in it."""
    at = ROOT / path
    if at.is_dir() or at.name == "README.md":
        folder = path if at.is_dir() else os.path.dirname(path)
        return os.path.normpath(os.path.join(folder, "index.html"))
    if at.suffix in (".ipynb", ".md"):
        return os.path.splitext(path)[0] + ".html"
    return f"{path}.html" if lexer_of(path) else path


def lexer_of(path: str) -> Lexer | None:
    """What colours a file on its page. None: it is copied as it is, as a picture, a record or a compressed trace."""
    try:
        return None if path.endswith((".svg", ".json")) else get_lexer_for_filename(path)
    except ClassNotFound:
        return None if "." in path.rpartition("/")[2] else get_lexer_by_name("text")


def entries(page: Page) -> Iterator[tuple[str, str, str, str]]:
    """(id, page, heading, words) of all that search finds in a page: its sections, and the glossary's terms."""
    visible = re.sub(r"<details>.*?</details>", "", page.body, flags=re.S)
    if not page.contents:  # a source file: which words it has, not where
        visible = " ".join(dict.fromkeys(re.findall(r"[^\W\d]\w\w+", plain(visible))))
    sections = re.split(r'<h[123] id="([^"]+)">(.*?)</h[123]>', visible)
    for anchor, heading, body in zip(["", *sections[1::3]], ["", *sections[2::3]], sections[::3], strict=True):
        if anchor == "glossary":
            rows = [[plain(cell) for cell in row.split("</td>")] for row in body.split("<tr>")[2:]]
            yield from ((anchor, "Glossary", term, meaning) for term, meaning, *_ in rows)
        elif words := plain(body):
            yield anchor, page.title, plain(heading), words


def parts() -> list[tuple[str, list[tuple[str, str]]]]:
    """[(part, [(title, path) of each notebook])], as the table of notebooks/README.md has them."""
    table: list[tuple[str, list[tuple[str, str]]]] = []
    for line in (NOTEBOOKS / "README.md").read_text(encoding="utf-8").splitlines():
        if part := re.match(r"\| \*\*(.+?)\*\* \|", line):
            table.append((part[1], []))
        elif notebook := re.match(r"\| \[(\d\d · [^\]]+)\]\((\w+\.ipynb)\) \|", line):
            table[-1][1].append((notebook[1], f"notebooks/{notebook[2]}"))
    return table


class Site:
    """The pages made so far, and the paths that they link to."""

    def __init__(self, out: Path, repository: str) -> None:
        self.out, self.repository, self.parts = out, repository, parts()
        self.order = [path for _, notebooks in self.parts for _, path in notebooks]
        self.linked = deque([*self.order, *(path for path in TABLES if "#" not in path)])
        self.index: list[tuple[str, str, str, str]] = []  # address#id, page, heading, words
        environment = jinja2.Environment(loader=jinja2.FileSystemLoader(WEB), autoescape=True, trim_blocks=True)
        self.template = environment.get_template("page.html")

    def build(self) -> int:
        """Write all pages; returns how many. Raises ValueError for a link that leads nowhere."""
        self.out.mkdir(parents=True, exist_ok=True)
        done: set[str] = set()
        while self.linked:
            path = self.linked.popleft()
            if address(path) in done:
                continue
            done.add(address(path))
            target = self.out / address(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".html":
                self.write(self.page(path))
            else:
                shutil.copyfile(ROOT / path, target)
        self.write(Page("", "Search", (WEB / "search.html").read_text(encoding="utf-8")))
        index = json.dumps(self.index, ensure_ascii=False, separators=(",", ":"))
        (self.out / INDEX).write_text(f"const INDEX = {index};\n", encoding="utf-8")
        shutil.copyfile(WEB / "search.js", self.out / "search.js")
        light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in ("default", "github-dark"))
        style = f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
        style += (WEB / "style.css").read_text(encoding="utf-8")
        (self.out / "style.css").write_text(style, encoding="utf-8")
        return len(done) + 1

    def page(self, path: str) -> Page:
        at = ROOT / path
        if at.is_dir() and (at / "README.md").exists():
            path, at = os.path.normpath(f"{path}/README.md"), at / "README.md"
        if at.is_dir():
            files = [file for file in at.iterdir() if not file.name.startswith((".", "__pycache__"))]
            names = sorted(file.name + "/" * file.is_dir() for file in files)
            return self.prose(f"{path}/", f"# `{path}/`\n\n" + "\n".join(f"- [`{name}`]({name})" for name in names))
        if at.suffix == ".ipynb":
            return self.notebook(path)
        text = at.read_text(encoding="utf-8")
        if at.suffix == ".md":
            return self.prose(path, text)
        return Page(path, path, f"<h1>{html.escape(path)}</h1>\n{highlight(text, lexer_of(path), HtmlFormatter())}")

    def prose(self, path: str, text: str) -> Page:
        renderer = Renderer()
        body = self.markdown(text, path, renderer)
        return Page(path, renderer.contents[0][2], body, renderer.contents)

    def notebook(self, path: str) -> Page:
        renderer, body = Renderer(), []
        pictures = self.out / os.path.splitext(path)[0]
        for cell in nbformat.read(ROOT / path, as_version=4).cells:
            if cell.cell_type == "markdown":
                body.append(self.markdown(cell.source, path, renderer))
                continue
            body.append(f'<div class="cell">{coloured(cell.source, "python")}</div>\n')
            shown = "".join(self.output(output, pictures) for output in cell.outputs)
            hidden = cell.metadata.get("jupyter", {}).get("outputs_hidden") or "\nHint: " in shown
            if shown and (hidden or survey.PUZZLE in cell.metadata.get("tags", []) or survey.asks(cell.source)):
                shown = f"<details><summary>Stored output: first your own answer</summary>\n{shown}</details>\n"
            body.append(shown)
        return Page(path, renderer.contents[0][2], "".join(body), renderer.contents)

    def output(self, output: nbformat.NotebookNode, pictures: Path) -> str:
        """One stored output; a picture becomes a file in the folder `pictures`."""
        data = output.get("data", {})
        if "image/png" in data:
            pictures.mkdir(parents=True, exist_ok=True)
            file = pictures / f"{len(list(pictures.iterdir())) + 1}.png"
            file.write_bytes(base64.b64decode(data["image/png"]))
            width, height = (int.from_bytes(file.read_bytes()[at : at + 4], "big") for at in (16, 20))
            size = f'width="{width}" height="{height}"'
            source = f"{pictures.name}/{file.name}"
            return f'<div class="wide"><img src="{source}" {size} alt="what the cell draws"></div>\n'
        if "text/html" in data:
            return f'<div class="wide">{data["text/html"]}</div>\n'
        return f'<pre class="output">{html.escape(output.get("text") or data.get("text/plain", ""))}</pre>\n'

    def markdown(self, text: str, path: str, renderer: Renderer) -> str:
        """HTML of some Markdown of the file `path`, whose links lead to pages of the site, which are asked for."""
        body = mistune.create_markdown(renderer=renderer, plugins=["table", "strikethrough"])(text)

        def relinked(match: re.Match[str]) -> str:
            link = html.unescape(match[2])
            if re.match(r"[a-z]+:|#", link):
                return match[0]
            name, hash_, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), name))
            if target.startswith("..") or not (ROOT / target).exists():
                raise ValueError(f"{path}: the link {link} leads nowhere")
            self.linked.append(target)
            return f'{match[1]}="{html.escape(self.relative(address(target), path) + hash_ + anchor)}"'

        return re.sub(r'(?<=[ \n])(href|src|srcset)="([^"]*)"', relinked, body)

    def relative(self, to: str, path: str) -> str:
        """The link from the page of `path` to an address of the site."""
        return os.path.relpath(to, os.path.dirname(address(path)) if path else ".")

    def write(self, page: Page) -> None:
        at = address(page.path) if page.path else "search.html"
        beside = self.order.index(page.path) if page.path in self.order else None
        text = self.template.render(
            page=page,
            parts=self.parts,
            tables=TABLES,
            link=lambda path: self.relative(address(path.split("#")[0]) + "".join(path.partition("#")[1:]), page.path),
            file=lambda name: self.relative(name, page.path),
            before=self.order[beside - 1] if beside else None,
            after=self.order[beside + 1] if beside is not None and beside + 1 < len(self.order) else None,
            titles={path: title for _, notebooks in self.parts for title, path in notebooks},
            hosted=self.repository if page.path in HOSTED else "",
        )
        (self.out / at).write_text(text, encoding="utf-8")
        if page.path:
            self.index += [(f"{at}#{anchor}".removesuffix("#"), *entry) for anchor, *entry in entries(page)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the notebooks and READMEs as a site of static pages.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", metavar="DIR", help="where pages go")
    parser.add_argument("--repository", default="", metavar="OWNER/NAME", help="where on GitHub it is, for Colab")
    args = parser.parse_args(argv)
    try:
        if args.out.exists() and any(args.out.iterdir()):
            if not (args.out / INDEX).exists():
                parser.error(f"{args.out} has files that are no site's")
            shutil.rmtree(args.out)
        count = Site(args.out, args.repository).build()
    except (OSError, ValueError) as error:
        print(f"lecture_site.py: {error}", file=sys.stderr)
        return 1
    print(f"{count} pages: {os.path.relpath(args.out / 'index.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
