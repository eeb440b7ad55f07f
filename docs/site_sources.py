"""Parts of the site that are made here: pages of linked source, docstrings, notebooks as text.

A link to a file of the repository that is not a page leads to its text on the site, at the same
place; one to a folder leads to a list of its files.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

LEXERS = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "bash"}


class SourceLinks(SphinxTransform):
    """Turns links that leave the pages into links to pages of source."""

    default_priority = 100

    def apply(self, **_: Any) -> None:
        """Runs once per page, before Sphinx would copy what is linked."""
        root, page = Path(self.env.srcdir), Path(self.env.doc2path(self.env.docname))
        wanted = self.env.__dict__.setdefault("linked_sources", set())
        links = addnodes.download_reference, addnodes.pending_xref
        for node in [node for link in links for node in self.document.findall(link)]:
            target = node["reftarget"]
            path = (page.parent / target).resolve()
            leaves = isinstance(node, addnodes.download_reference) or path.is_dir()
            if not leaves or not path.is_relative_to(root):
                continue
            wanted.add(path.relative_to(root).as_posix())
            inside = "/index.html" if path.is_dir() else ".html"
            node.replace_self(
                nodes.reference("", "", *node.children, refuri=target.rstrip("/") + inside)
            )


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages of source: name, what the template shows, template."""
    root = Path(app.srcdir)
    wanted = {root / name for name in getattr(app.env, "linked_sources", ())}
    folders = {path for path in wanted if path.is_dir()}
    listed = {folder: sorted(x for x in folder.iterdir() if x.is_file()) for folder in folders}
    for path in sorted(wanted - folders | {x for files in listed.values() for x in files}):
        name = path.relative_to(root).as_posix()
        lexer = LEXERS.get(path.suffix, "text")
        body = app.builder.highlighter.highlight_block(path.read_text(encoding="utf-8"), lexer)
        yield name, {"title": name, "body": f"<h1>{html.escape(name)}</h1>{body}"}, "page.html"
    for folder, files in sorted(listed.items()):
        name = folder.relative_to(root).as_posix()
        items = (f'<li><a href="{x.name}.html">{html.escape(x.name)}</a></li>' for x in files)
        body = f"<h1>{html.escape(name)}/</h1><ul>{''.join(items)}</ul>"
        yield f"{name}/index", {"title": name, "body": body}, "page.html"


def as_markdown(app: Sphinx, docname: str, source: list[str]) -> None:
    """A notebook as its text and code; it is kept without outputs."""
    if Path(app.env.doc2path(docname)).suffix == ".ipynb":
        cells = [(x["cell_type"], "".join(x["source"])) for x in json.loads(source[0])["cells"]]
        source[0] = "\n\n".join(
            x if cell_type == "markdown" else f"```python\n{x}\n```" for cell_type, x in cells
        )


def marked_up(lines: Iterable[str]) -> Iterator[str]:
    """A docstring as reStructuredText: equations and code as blocks, [*B] and |d| as text."""
    section = block = code = False
    before = ""
    for line in lines:
        indented = line.startswith(" ")
        if line and not indented:
            section, block = bool(re.fullmatch(r"[A-Z][a-z]+:|\* .*", line)), False
        if indented and not before and not section and not block:
            yield from ("::", "")
            block = True
        if block:
            yield line
        else:
            parts = line.split("`")
            yield "`".join(text if code ^ n % 2 else plain(text, n) for n, text in enumerate(parts))
            code ^= len(parts) % 2 == 0
        before = line


def plain(text: str, after_code: int) -> str:
    """Text outside of `code`: stars and bars are themselves, and `name`s has its s."""
    text = re.sub(r"[*|](?! )|\|", r"\\\g<0>", text)
    return rf"\ {text}" if after_code and text[:1].isalnum() else text


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the parts with Sphinx."""

    def mark_up(_app, _what, _name, _obj, _options, lines: list[str]) -> None:
        lines[:] = marked_up(lines)

    def is_described(_app, _what, _name, member, _skip, _options) -> bool | None:
        """Fields of a NamedTuple, which its docstring describes; None leaves it to autodoc."""
        return str(member.__doc__).startswith("Alias for field number") or None

    app.add_transform(SourceLinks)
    app.connect("html-collect-pages", pages)
    app.connect("source-read", as_markdown)
    app.connect("autodoc-process-docstring", mark_up, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", is_described)
    return {"version": "1", "parallel_read_safe": False}
