"""Self-contained pages: one HTML file with its style and one script.

The page's content security policy allows only that script, by its hash, and no requests: even an
unescaped name could run nothing.
"""

import base64
import hashlib
from pathlib import Path
from typing import NamedTuple

import jinja2
import markupsafe

from experiments.reporting.statistics import number, p_value

TEMPLATES = Path(__file__).parent / "templates"


class Figure(NamedTuple):
    """A figure in a page: its SVG, that for a phone, alt text, the name of its files, its data."""

    svg: markupsafe.Markup
    slim: markupsafe.Markup
    alt: str
    stem: str
    table: str


class Section(NamedTuple):
    """A table in a page, with its title and a note.

    The first cell of a row is its name. `csv` is the file with all digits, None if the rows are not
    schemes of the comparison; `words` are columns of text, which may wrap.
    """

    title: str
    note: str
    head: tuple[str, ...]
    rows: list[tuple]
    csv: str | None
    words: tuple[str, ...] = ()


def render(template: str, scripts: tuple[str, ...], **context) -> str:
    """The page of a template; values of `context` are escaped unless marked as safe.

    The template has `script` in its only script element, and `digest` in its policy.
    """
    script = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "p_value": p_value}
    page = environment.get_template(template)
    return page.render(script=markupsafe.Markup(script), digest=digest, **context)
