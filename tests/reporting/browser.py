"""A headless Chromium, and the pages that it opens, as fixtures."""

import contextlib
import itertools
import json
import shutil

import pytest

from experiments import explore
from experiments.reporting import plotting, results
from tests.reporting.comparisons import HOSTILE, build

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SCHEMES = ("nope", "sinusoidal", "learned", "rope", "alibi", HOSTILE)
WIDE, LAPTOP = {"width": 1280, "height": 900}, {"width": 1185, "height": 900}
PHONE = {"width": 390, "height": 844}
MARKS = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="session")
def browser_path(request):
    """A browser; where there is none, these tests fail if asked for by name, else are skipped."""
    missing = pytest.fail if "browser" in request.config.getoption("markexpr") else pytest.skip
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        missing("playwright is missing: install the extra `browser`")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing(f"no browser on the PATH: install one of {', '.join(NAMES)}")
    return path


@pytest.fixture(scope="module")
def chromium(browser_path):
    """The browser, running; not for longer than a module, for it has an event loop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # the sandbox needs rights that containers and root do not have; the pages are our own
        with contextlib.closing(
            playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        ) as browser:
            yield browser


@pytest.fixture(scope="session")
def pages(browser_path, fake, tmp_path_factory):
    """Name → file: the report of a small comparison, one seed missing, and the explorer."""
    folder = fake(SCHEMES, name=HOSTILE, rates=[0.001, 0.01], rate_steps=50)
    for name, rate in itertools.product(SCHEMES, (0.001, 0.01)):
        path = folder / results.rate_folder(name, rate, 1.0) / "evaluation.json"
        path.parent.mkdir(parents=True)
        losses = {"non-overlapping": {"64": [2.0 + rate]}}
        path.write_text(json.dumps({"status": "ok", "losses": losses}))
        for run in (folder / "runs" / name).glob("*/evaluation.json"):
            run.write_text(json.dumps(json.loads(run.read_text()) | {"learning_rate": 0.001}))
    timed = json.loads((folder / "speed.json").read_text())
    timed["lengths"] = {
        str(n): {"batch": 512 // n, "encodings": timed["encodings"]} for n in (64, 128)
    }
    (folder / "speed.json").write_text(json.dumps(timed))
    (folder / "runs" / "nope" / "seed2" / "evaluation.json").unlink()
    out = tmp_path_factory.mktemp("explore")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotting, "picture", lambda *_: None)  # a page has the figures as SVG
        return {"report": build(folder), "explorer": explore.write(out)}


@pytest.fixture
def visit(chromium, pages):
    """Opens a page; when the test ends, the page must have asked for nothing and said nothing."""
    found, contexts = [], []

    def opened(name, viewport=WIDE, **options):
        context = chromium.new_context(viewport=viewport, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda r: found.append(r.url) if r.url != uri else None)
        page.on("console", lambda message: found.append(message.text))
        page.on("pageerror", lambda error: found.append(str(error)))
        uri = pages[name].as_uri()
        page.goto(uri)
        return page

    yield opened
    for context in contexts:
        context.close()
    found = [words for words in found if not words.startswith("data:")]
    assert not found, found
