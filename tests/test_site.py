"""The lecture as a site: what each page links to is there, nothing comes from elsewhere, and nothing is given away."""

import html
import itertools
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
for package in ("jinja2", "mistune", "pygments"):
    pytest.importorskip(package)
import hosted  # noqa: E402  of notebooks/
import lecture_site  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//|[a-z]+:(?!,)")  # "data:," is no address


class Parsed(HTMLParser):
    """A page's ids, its links (<a>), and what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.loaded, self.text = [], [], [], path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if tag == "a" else []
        self.loaded += [attributes[name] for name in ("src", "srcset", "data", "action") if name in attributes]
        self.loaded += [attributes["href"]] if "href" in attributes and tag != "a" else []
        self.loaded += re.findall(r"url\(([^)]*)", attributes.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(folder, {address: its page parsed}) of the whole site; code is not coloured, which takes most of the time."""
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lecture_site, "highlight", lambda code, *_: f"<pre>{html.escape(code)}</pre>")
        lecture_site.Site(out, "owner/name").build()
    return out, {path.relative_to(out).as_posix(): Parsed(path) for path in out.rglob("*.html")}


@pytest.fixture(scope="module")
def index(site):
    """[[address, page, heading, words]] of the search."""
    text = (site[0] / "search_index.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("const INDEX = ").removesuffix(";\n"))


def test_every_link_and_picture_is_there(site):
    out, pages = site
    broken = []
    for at, page in pages.items():
        assert len(set(page.ids)) == len(page.ids), at
        for link in {*page.links, *page.loaded}:
            name, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(at), name)) if name else at
            if not ELSEWHERE.match(link) and link != "data:,":
                exists = (out / target).is_file() and (not anchor or anchor in pages[target].ids)
                broken += [] if exists else [(at, link)]
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site):
    out, pages = site
    assert {link for page in pages.values() for link in page.loaded if ELSEWHERE.match(link)} == set()
    links = {link for page in pages.values() for link in page.links if ELSEWHERE.match(link)}
    assert [link for link in links if not link.startswith("https://")] == []
    for file in ("style.css", "search.js"):
        assert not re.search(r"@import|url\(|https?:|fetch\(|import\(", (out / file).read_text(encoding="utf-8"))


def test_each_notebook_has_a_page_with_the_whole_navigation(site):
    _, pages = site
    addresses = [f"notebooks/{path.stem}.html" for path in NOTEBOOKS]
    assert {*addresses, "index.html", "search.html", "CONTRIBUTING.html"} <= set(pages)
    assert {f"{folder}/index.html" for folder in ("notebooks", "kernels", "traces", "data", "tests")} <= set(pages)
    for at, page in pages.items():
        links = [os.path.normpath(os.path.join(os.path.dirname(at), link)) for link in page.links]
        assert set(addresses) <= set(links), at
    in_order = [path.replace(".ipynb", ".html") for _, notebooks in lecture_site.parts() for _, path in notebooks]
    assert sorted(in_order) == addresses
    for before, after in itertools.pairwise(in_order):
        assert f'<a href="{Path(after).name}" rel="next">' in pages[before].text
        assert f'<a href="{Path(before).name}" rel="prev">' in pages[after].text


def test_a_page_has_the_notebooks_text_code_outputs_and_pictures(site):
    out, pages = site
    for path in NOTEBOOKS:
        text = pages[f"notebooks/{path.stem}.html"].text
        pictures = 0
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                assert html.escape(cell.source) in text
            for output in cell.get("outputs", []):
                assert html.escape(output.get("text", "")).replace("\r\n", "\n") in text
                pictures += "image/png" in output.get("data", {})
        assert len(list((out / "notebooks" / path.stem).glob("*.png"))) == pictures == text.count("<img ")


def test_search_knows_each_page(site, index):
    _, pages = site
    known = {}
    for address, page, heading, words in index:
        known[address.partition("#")[0]] = known.get(address.partition("#")[0], "") + f" {page} {heading} {words}"
    assert set(known) == set(pages) - {"search.html"}
    for path in NOTEBOOKS:
        prose = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
        words = set(re.findall(r"[^\W\d_]{4,}", re.sub(r"\]\([^)]*\)|```\w+", "]", " ".join(prose))))
        assert {word for word in words if word not in known[f"notebooks/{path.stem}.html"]} == set()
    assert ["notebooks/index.html#glossary", "Glossary", "kernel", "a function that runs on the GPU"] in index


def test_hints_are_folded_and_not_found(site, index):
    _, pages = site
    searched, hints = json.dumps(index), 0
    for path in NOTEBOOKS:
        page = pages[f"notebooks/{path.stem}.html"].text
        hints += page.count("\nHint: ")
        assert "\nHint: " not in re.sub(r"<details>.*?</details>", "", page, flags=re.S), path.stem
    assert hints > len(NOTEBOOKS)
    assert "not yet: " not in searched
    assert "solutions.py" not in {os.path.basename(at).removesuffix(".html") for at in pages}


def test_no_prose_has_a_formula_that_needs_a_script():
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert [text for text in prose if "$" in re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)] == []


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    site = lecture_site.Site(tmp_path, "")
    with pytest.raises(ValueError, match=r"data/README\.md: the link \.\./no\.py leads nowhere"):
        site.prose("data/README.md", "# Data\n\n[that](../no.py)")
    with pytest.raises(ValueError, match="leads nowhere"):
        site.prose("README.md", "# Out\n\n[that](../../etc/passwd)")


def test_code_is_coloured_and_headings_that_are_alike_have_ids_of_their_own(tmp_path):
    text = "# A `b`: c\n\n## d\n\n## d\n\n```python\nx = 1 < 2\n```\n"
    page = lecture_site.Site(tmp_path, "").prose("README.md", text)
    assert [anchor for _, anchor, _ in page.contents] == ["a-b-c", "d", "d-1"]
    assert '<span class="n">x</span>' in page.body


def test_the_command_writes_the_site_and_says_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lecture_site, "TABLES", {"tests/README.md": "Tests"})
    monkeypatch.setattr(lecture_site, "parts", list)
    assert lecture_site.main(["--out", str(tmp_path)]) == 0
    assert "index.html" in capsys.readouterr().out
    assert (tmp_path / "tests" / "index.html").exists()
    (tmp_path / "old.html").write_text("a page of the site before")
    assert lecture_site.main(["--out", str(tmp_path)]) == 0
    assert not (tmp_path / "old.html").exists()


def test_the_command_leaves_a_folder_alone_that_is_no_site(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        lecture_site.main(["--out", str(tmp_path)])
    assert "no site's" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_colab_is_offered_where_the_repository_is_known(site, tmp_path):
    page = site[1]["notebooks/08_triton_kernels.html"].text
    assert "https://colab.research.google.com/github/owner/name/blob/main/notebooks/08_triton_kernels.ipynb" in page
    clone, run = re.findall(r"^(?:.*>)?(!git clone .*|%run .*?)(?:</pre>)?$", page, re.M)
    documented = hosted.__doc__.replace("OWNER/NAME", "owner/name")
    assert clone in documented
    assert run in documented
    assert (ROOT / run.removeprefix("%run /content/lecture/")).exists()
    assert sum("colab.research" in other.text for other in site[1].values()) == 1
    alone = lecture_site.Site(tmp_path, "")
    alone.write(alone.page("notebooks/08_triton_kernels.ipynb"))
    assert "colab.research" not in (tmp_path / "notebooks" / "08_triton_kernels.html").read_text(encoding="utf-8")
