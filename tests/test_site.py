"""Links of pages lead somewhere; the site builds without warnings, of its own files alone."""

import functools
import html.parser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("site")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/*.ipynb")])
BUILDERS = ("sphinx", "furo", "myst_parser")


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


@functools.cache
def anchors(page: Path) -> set[str]:
    """What GitHub names the headings of a page, repeated ones with their number."""
    names: list[str] = []
    for title in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        names.append(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    seen = {name: names.count(name) for name in names}
    return {*names} | {f"{name}-{n}" for name, times in seen.items() for n in range(1, times)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_and_anchor_of_a_page_exists(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_links_are_found_and_missing_anchors_are_missed(tmp_path):
    assert len(links(ROOT / "README.md")) > 60
    page = tmp_path / "page.md"
    page.write_text("# GPU\n\n## 4,096 tokens\n\n```\n# code\n```\n\n## 4,096 *tokens*\n")
    assert anchors(page) == {"gpu", "4096-tokens", "4096-tokens-1"}


def test_the_reference_has_every_encoding_and_term():
    named = "".join(path.read_text("utf-8") for path in ROOT.glob("docs/api/*.rst"))
    named = set(re.findall(r"automodule:: (\S+)", named))
    files = [path.relative_to(ROOT) for path in ROOT.glob("pe_jax/encodings/**/*.py")]
    modules = {".".join(path.with_suffix("").parts) for path in files if path.stem != "__init__"}
    assert modules - named == {"pe_jax.encodings.schemes"}  # the list of names


class Page(html.parser.HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        values = {name: value for name, value in attrs if value}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a":
            self.links |= {values["href"]} if "href" in values else set()
        else:
            self.loaded |= {values[name] for name in ("href", "src") if name in values}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` builds it: a minute, where its extra is."""
    for library in BUILDERS:
        pytest.importorskip(library, reason=f"{library} is missing: install the extra `docs`")
    out = tmp_path_factory.mktemp("site")
    (command,) = re.findall(r"-m (sphinx .*)", (ROOT / "Makefile").read_text("utf-8"))
    words = [str(out) if word == "runs/site" else word for word in command.split()]
    built = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
    assert not built.returncode, built.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def built_pages(site):
    return {path: Page(path) for path in site.glob("**/*.html")}


def test_the_site_loads_nothing_from_elsewhere(site, built_pages):
    assert len(built_pages) > 20
    for path, page in built_pages.items():
        far = {link for link in page.loaded if re.match(r"(https?:)?//", link)}
        assert not far, path
    for path in site.glob("**/*.css"):
        assert not re.search(r"(url\(|@import)[\"' ]*(https?:)?//", path.read_text("utf-8")), path


def test_links_of_the_site_lead_to_its_pages_and_their_anchors(site, built_pages):
    for path, page in built_pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            file = (path.parent / target).resolve() if target else path
            assert file.is_file(), f"{path.relative_to(site)}: {link}"
            if anchor and file in built_pages:
                assert anchor in built_pages[file].ids, f"{path.relative_to(site)}: {link}"
