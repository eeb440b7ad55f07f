"""The pages in a real browser, headless Chromium: `make browser`; elsewhere skipped with a reason.

    pip install -e '.[test,browser]', and Chromium or Chrome from the system

Every page is opened as a file with the network closed; what it asks for besides itself, what it
writes to the console and what it throws are counted, and must be nothing.
"""

import pytest

from tests.reporting import browser
from tests.reporting.browser import LAPTOP, PHONE, WIDE

pytestmark = browser.MARKS


@pytest.mark.parametrize("name", ["report", "explorer"])
@pytest.mark.parametrize("viewport", [WIDE, LAPTOP, PHONE], ids=["wide", "laptop", "phone"])
def test_a_page_fits_its_screen_and_needs_nothing_else(visit, name, viewport):
    page = visit(name, viewport)
    wide, seen = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= seen == viewport["width"]


def test_what_is_fetched_is_seen(chromium, tmp_path):
    """The control: a page that asks for a picture is caught by the same listener."""
    path, asked = tmp_path / "page.html", []
    path.write_text('<img src="https://example.org/picture.png">')
    page = chromium.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.context.set_offline(True)
    page.goto(path.as_uri())
    page.context.close()
    assert asked == [path.as_uri(), "https://example.org/picture.png"]
