"""The built pages: docstrings stand there whole, a class shows how it is made, code fits its column.

`make docs` builds the pages and runs this on them: `SITE` names their folder. Without it they are built here, where
MkDocs is installed.
"""

import dataclasses
import hashlib
import html
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
COLUMN = 88  # characters of code that the column holds at 1280 pixels, by docs/code.css
WIDE = 120  # the same where a page has no table of contents beside it: the scripts of the gallery
LANGUAGE = {"docstring_parser": "google", "search_paths": [ROOT]}
AS_SHOWN = {"warnings": False, "returns_named_value": False, "returns_multiple_items": False}
# Blocks that are no code of the pages: the sources of what the reference describes, and what programs print.
OTHER_CODE = {"mkdocstrings-source", "no-copy"}
# What the pages are made of. Another tag is a name in angle brackets that Markdown took for HTML.
TAGS = {
    *(
        "a",
        "article",
        "br",
        "button",
        "code",
        "details",
        "div",
        "em",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "hr",
        "img",
        "label",
    ),
    *("li", "nav", "ol", "p", "path", "pre", "small", "span", "strong", "summary", "svg", "table", "tbody", "td", "th"),
    *("thead", "tr", "ul"),
}
LEFT_OVER = re.compile(r"`|\]\[|\]\(|^ *(?:Args|Returns|Raises|Yields|Attributes|Examples?): *$", re.MULTILINE)


@dataclasses.dataclass
class ShownClass:
    path: str = ""
    signature: str = ""
    bases: str = ""


class Page(HTMLParser):
    """What a reader finds on a page.

    Attributes:
        text: All of it, from the article.
        prose: The same without code and without the titles of sections.
        code: Each block of code.
        headings: The objects that the page describes, by their path.
        classes: Those that are classes.
        emphasis: The characters before, in and behind emphasised text, where no other element is between.
        formulas: The TeX of the article's formulas, with its marks.
        is_wide: It has no table of contents beside it.
        tags: The elements of the article.
        requests: What a browser loads for the page.
        anchors: Where links to the page can lead.
        links: Where those of the article lead.
        mentioned: Code in the text and in tables that is no link.
    """

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.name = path.parent.name or "index"
        self.text = self.prose = ""
        self.code: list[str] = []
        self.headings: list[str] = []
        self.classes: list[ShownClass] = []
        self.emphasis: list[list[str]] = []
        self.formulas: list[str] = []
        self.is_wide = False
        self.tags: set[str] = set()
        self.requests: list[str] = []
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.mentioned: list[str] = []
        self.path = path
        self._open: list[tuple[str, str]] = []
        self._before = ""
        text = path.read_text("utf-8")
        self.is_wide = re.search(r'data-md-type="toc" hidden', text) is not None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        kind = given.get("class", "")
        if tag in ("link", "img", "script", "iframe") and given.get("rel") != "canonical":
            self.requests += [given[each] for each in ("src", "href") if each in given]
        self.anchors |= {given["id"]} if "id" in given else set()
        if tag == "a" and self._open:
            self.links.append(given.get("href", ""))
        if tag == "article" or self._open:
            self.tags.add(tag)
            if tag not in ("br", "hr", "img", "path", "input"):
                self._open.append((tag, kind))
        if "doc-class" in kind.split() and tag == "div":
            self.classes.append(ShownClass())
        if "doc-heading" in kind:
            self.headings.append(given["id"])
            if self.classes and not self.classes[-1].path:
                self.classes[-1].path = given["id"]
        if tag == "pre" and not OTHER_CODE & set(" ".join(kind for _, kind in self._open).split()):
            self.code.append("")
        if "arithmatex" in kind:
            self.formulas.append("")
        if tag == "code" and not {"a", "pre", "h1", "h2", "h3"} & {each for each, _ in self._open}:
            self.mentioned.append("")
        if tag in ("em", "strong"):
            self.emphasis.append([self._before, "", ""])
        self._before = ""

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            self._open.pop()
        self._before = tag if tag in ("em", "strong") else ""

    def handle_data(self, data: str) -> None:
        if not self._open:
            return
        around = " ".join(f"{tag} {kind}" for tag, kind in self._open).split()
        self.text += data
        if "pre" in around and not OTHER_CODE & set(around):
            self.code[-1] += data
        if "arithmatex" in around:
            self.formulas[-1] += data
        if "code" in around and self.mentioned and not {"a", "pre", "h1", "h2", "h3"} & set(around):
            self.mentioned[-1] += data
        if not {"pre", "code", "doc-section-title", "script", "style", "arithmatex"} & set(around):
            self.prose += data
        if self.classes and "doc-signature" in around and "doc-class" in around and not self.classes[-1].bases:
            self.classes[-1].signature += data
        if self.classes and "doc-class-bases" in around:
            self.classes[-1].bases += data
        if self._before in ("em", "strong"):
            self.emphasis[-1][2] = data[0]
        if {"em", "strong"} & set(around):
            self.emphasis[-1][1] += data
        self._before = data[-1]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if os.environ.get("SITE"):
        return ROOT / os.environ["SITE"]
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed: `make docs` builds the pages and looks at them")
    folder: pathlib.Path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(scope="session")
def package():
    """Return the package as Griffe reads it: nothing is imported."""
    griffe = pytest.importorskip("griffe")
    extensions = griffe.load_extensions(*(str(ROOT / "docs" / name) for name in ("exports.py", "formulas.py")))
    return griffe.load("hpfracc_nn", extensions=extensions, resolve_aliases=True, **LANGUAGE)


@pytest.fixture(scope="session")
def pages(site: pathlib.Path) -> list[Page]:
    found = [Page(path) for path in sorted(site.rglob("index.html"))]
    assert len(found) == len(list((ROOT / "docs").rglob("*.md")))
    return found


def squeezed(text: str) -> str:
    """Return a text without spaces and without the marks of code."""
    return re.sub(r"[\s`]", "", text)


def paragraphs(docstring) -> Iterator[str]:
    """Yield what a docstring says, without the titles of its sections and the signs of lists."""
    for section in docstring.parse("google", **AS_SHOWN):
        if section.kind.value == "text":
            texts = [section.value]
        elif section.kind.value == "examples":
            texts = [text for _, text in section.value]
        elif section.kind.value == "admonition":
            texts = [section.value.contents]
        else:
            texts = [item.description for item in section.value]
        for text in texts:
            yield from re.split(r"\n\s*\n", re.sub(r"^\s*- ", "", text, flags=re.MULTILINE))


def test_no_character_of_a_docstring_is_lost(pages, package):
    lost = []
    for page in pages:
        shown = squeezed(page.text)
        for path in page.headings:
            docstring = package[path.removeprefix("hpfracc_nn.")].docstring
            for each in paragraphs(docstring) if docstring else ():
                if not each.startswith("$$") and squeezed(each) not in shown:
                    lost.append(f"{path}: {each}")
    assert sum(len(page.headings) for page in pages) > 500
    assert not lost, "Write as code, in backticks, what Markdown takes for its own:\n" + "\n".join(lost)


def test_docstrings_emphasise_nothing_and_pages_words(pages):
    taken = []
    for page in pages:
        for before, inside, behind in page.emphasis:
            if (
                (page.headings and inside != "required")
                or re.match(r"[^\s(\"/]", before)
                or re.match(r"\w|[*^\[({]", behind)
            ):
                taken.append(f"{page.name}: {before}<{inside}>{behind}")
    assert not taken


def test_no_mark_is_left_over(pages):
    assert [(page.name, found[0]) for page in pages for found in LEFT_OVER.finditer(page.prose)] == []


def test_nothing_is_taken_for_html(pages):
    assert {(page.name, tag) for page in pages for tag in page.tags - TAGS} == set()


def test_every_public_class_shows_how_it_is_made(pages, package):
    """A protocol has no constructor."""
    shown = [each for page in pages for each in page.classes]
    for page in (page for page in pages if page.headings):
        home = package[page.headings[0].removeprefix("hpfracc_nn.").rpartition(".")[0]]
        names = {f"{home.path}.{name}" for name in home.exports or () if home[str(name)].is_class}
        assert names <= {each.path for each in page.classes}
    assert [each.path for each in shown if not each.signature and "Protocol" not in each.bases] == []


def test_what_is_shown_is_how_it_is_made(pages):
    """The parameters that Griffe read are those that Python knows."""
    other = {}
    for each in (each for page in pages for each in page.classes if each.signature):
        home, _, name = each.path.rpartition(".")
        try:
            cls = getattr(importlib.import_module(home), name)
        except ImportError:  # of an extra that is not installed
            continue
        if issubclass(cls, str | Exception):  # whose signature is none, or that of C
            continue
        arguments = html.unescape(each.signature).partition("(")[2]
        known = [
            parameter for parameter in inspect.signature(cls).parameters if parameter not in ("parent", "name")
        ]  # linen's own
        missing = [parameter for parameter in known if not re.search(rf"(?<!\w){parameter}\b", arguments)]
        if missing:
            other[each.path] = missing
    assert other == {}


def test_code_fits_the_column(pages):
    wide = [
        f"{page.name}: {line}"
        for page in pages
        for block in page.code
        for line in block.split("\n")
        if len(line) > (WIDE if page.is_wide else COLUMN)
    ]
    assert not wide, "\n".join(wide)


def test_pages_load_nothing_from_elsewhere(site, pages):
    assert [(page.name, each) for page in pages for each in page.requests if re.match(r"\w+:|//", each)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", sheet.read_text("utf-8")), sheet


def test_katex_draws_every_formula(site, pages):
    formulas = sorted({formula.strip()[2:-2] for page in pages for formula in page.formulas})
    assert len(formulas) > 80
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed: it runs KaTeX")
    program = f"""
    const katex = require({str(site / "katex" / "katex.min.js")!r});
    for (const formula of JSON.parse(require("fs").readFileSync(0, "utf-8")))
        try {{ katex.renderToString(formula, {{strict: "error"}}); }}
        catch (error) {{ console.log(formula, error.message); }}
    """
    done = subprocess.run([node, "-e", program], input=json.dumps(formulas), capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_llms_txt_lists_the_pages(site, pages):
    listed = re.findall(r"^- \[.+?\]\((.*?)\): \S", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert {os.path.normpath(site / each) for each in listed} == {str(page.path.parent) for page in pages}


def test_pages_of_examples_are_of_the_scripts_that_there_are():
    """A page keeps what its script printed: `make gallery ARGS=name` runs one that changed."""
    folder, stale = ROOT / "docs" / "gallery", []
    for script in sorted((ROOT / "examples").glob("*.py")):
        digest = hashlib.sha256(script.read_bytes()).hexdigest()[:16]
        page = folder / f"{script.stem}.md"
        if not page.exists() or f"\nscript: {digest}\n" not in page.read_text("utf-8"):
            stale.append(script.stem)
        assert len(script.read_text("utf-8").splitlines()) < 100, script.name
    assert stale == []


def test_every_link_leads_somewhere(site, pages):
    anchors = {page.path.parent: page.anchors for page in pages}
    broken = []
    for page in pages:
        for link in page.links:
            where, _, anchor = link.partition("#")
            if not re.match(r"\w+:", link):
                folder = pathlib.Path(os.path.normpath(page.path.parent / where))
                if not folder.exists() or (anchor and anchor not in anchors[folder]):
                    broken.append(f"{page.name}: {link}")
    assert not broken


def test_a_page_leads_to_what_it_names(pages):
    """A class of the library that a page mentions is described one click away, with where it is."""
    described = {path.rpartition(".")[2]: path for page in pages for path in (each.path for each in page.classes)}
    for page in (page for page in pages if not page.headings and page.name not in ("changelog", "migration")):
        named = {re.sub(r"(?:\w+=)?(?:\w+\.)*(\w*).*", r"\1", text) for text in page.mentioned}
        reached = {link.rpartition(".")[2] for link in page.links}
        assert sorted(named & set(described) - reached) == [], page.name
