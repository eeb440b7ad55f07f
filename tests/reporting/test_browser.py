"""The pages in a real browser, headless Chromium: `make browser`; elsewhere skipped with a reason.

    pip install -e '.[test,browser]', and Chromium or Chrome from the system

Every page is opened as a file with the network closed; what it asks for besides itself, what it
writes to the console and what it throws are counted, and must be nothing.
"""

import contextlib
import itertools
import json
import re
import shutil

import numpy as np
import pytest

from experiments.programs import explore
from experiments.reporting import comparison_report, results
from pe_jax.encodings import alibi, rope, rope_scaling, t5
from tests.reporting.comparisons import HOSTILE

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SCHEMES = ("nope", "sinusoidal", "learned", "rope", "alibi", HOSTILE)
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def chromium(request):
    """A browser; where there is none, these tests fail if asked for by name, else are skipped."""
    missing = pytest.fail if "browser" in request.config.getoption("markexpr") else pytest.skip
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is missing: install the extra `browser`")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing(f"no browser on the PATH: install one of {', '.join(NAMES)}")
    with sync_playwright() as playwright:
        # the sandbox needs rights that containers and root do not have; the pages are our own
        with contextlib.closing(
            playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        ) as browser:
            yield browser


@pytest.fixture(scope="module")
def pages(chromium, fake, tmp_path_factory):
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
    explorer = explore.write(out, [explore.alibi_slopes])[-1]
    return {"report": comparison_report.build(folder), "explorer": explorer}


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
    assert [words for words in found if not words.startswith("data:")] == []


def opacity(page, selector):
    """Of the first element, when transitions have ended."""
    page.evaluate("Promise.all(document.getAnimations().map((a) => a.finished))")
    return float(page.eval_on_selector(selector, "e => getComputedStyle(e).opacity"))


def rows(page, column=0):
    """A column of the verdicts, in order."""
    return page.eval_on_selector(
        ".scroll table tbody",
        "(body, n) => [...body.rows].map((row) => row.cells[n].innerText)",
        column,
    )


@pytest.mark.parametrize("name", ["report", "explorer"])
@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
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


def test_a_scheme_is_isolated_in_every_figure_and_table_at_once(visit):
    page = visit("report")
    rope_at, other = SCHEMES.index("rope"), SCHEMES.index("alibi")
    chip = page.get_by_role("button", name="rope", exact=True)
    chip.focus()
    page.keyboard.press("Enter")
    assert chip.get_attribute("aria-pressed") == "true"
    opacity(page, ".scheme")
    plots = page.eval_on_selector_all(
        ".plot:has(.scheme)",
        """all => all.map(plot => [...plot.querySelectorAll(".scheme")].map(
            e => [Number(e.dataset.s), Number(getComputedStyle(e).opacity)]))""",
    )
    assert len(plots) >= 8  # differences, two protocols, by position, three of speed, training
    for plot in plots:
        assert all((shown == 1) == (s == rope_at) for s, shown in plot)
    assert opacity(page, f"tr[data-s='{rope_at}']") == 1 > opacity(page, f"tr[data-s='{other}']")
    shown = page.eval_on_selector_all(
        "tr.scheme",
        "all => all.map(e => [Number(e.dataset.s), getComputedStyle(e).opacity === '1'])",
    )
    assert len(shown) >= 8 * len(SCHEMES)  # verdicts, losses, sizes, rates, speed by length
    assert all(on == (s == rope_at) for s, on in shown)
    page.get_by_role("button", name="alibi", exact=True).click()  # a second one joins
    assert opacity(page, f"tr[data-s='{other}']") == 1
    assert page.get_by_role("status").inner_text() == "Shown alone: rope, alibi"
    page.keyboard.press("Escape")
    assert opacity(page, ".plot .scheme[data-s='0']") == 1
    assert not page.get_by_role("button", name="Show all").is_visible()


def test_hovering_a_line_shows_it_alone_until_the_pointer_leaves(visit):
    page = visit("report")
    name = page.locator(".wide .scheme text", has_text="alibi").first
    name.scroll_into_view_if_needed()
    name.hover()
    assert opacity(page, "tr[data-s='0']") < 1
    page.mouse.move(2, 2)
    assert opacity(page, "tr[data-s='0']") == 1
    name.click()
    page.mouse.move(2, 2)
    assert opacity(page, "tr[data-s='0']") < 1


def test_tables_sort_by_number_with_what_has_none_last(visit):
    page = visit("report")
    given = rows(page)
    value = dict(zip(given, [x.replace("\N{MINUS SIGN}", "-") for x in rows(page, 1)], strict=True))
    value = {name: float(x) for name, x in value.items() if x != "—"}
    head = page.get_by_role("columnheader", name="difference").first
    button = head.get_by_role("button")
    button.focus()
    sorted_by = {}
    for key, order in (("Enter", "ascending"), ("Space", "descending"), ("Enter", None)):
        page.keyboard.press(key)
        assert head.get_attribute("aria-sort") == order
        sorted_by[order] = rows(page)
    lost = [name for name in given if name not in value]
    assert len(value) >= 3 and len(lost) >= 2
    assert sorted_by["ascending"] == sorted(value, key=value.get) + lost
    assert sorted_by["descending"] == sorted(value, key=value.get, reverse=True) + lost
    assert sorted_by[None] == given
    assert page.locator("table.still").count() and not page.locator("table.still button").count()
    page.get_by_role("button", name="encoding").first.click()
    assert rows(page) == sorted(given, key=str.lower)


def test_hostile_names_are_words_in_the_page(visit):
    page = visit("report")
    chip = page.get_by_role("button", name=HOSTILE, exact=True)
    chip.click()
    assert page.get_by_role("status").inner_text() == f"Shown alone: {HOSTILE}"
    assert page.locator("script").count() == 1


def test_without_javascript_all_is_shown(visit):
    page = visit("report", java_script_enabled=False)
    assert page.get_by_text("batch_tokens").count() == 0  # not in this configuration
    for words in ("model.depth", "Every field of the configuration"):
        assert page.get_by_text(words).last.is_visible()
    assert page.locator(".legend a").count() == len(SCHEMES)


def box(page, selector):
    """Where the first element that is shown stands: left, top, right, bottom."""
    shown = page.locator(f"{selector}:visible").first.bounding_box()
    return shown["x"], shown["y"], shown["x"] + shown["width"], shown["y"] + shown["height"]


def test_the_first_screen_has_the_finding_the_answers_and_the_figure_at_the_right(visit):
    page = visit("report")
    _, _, _, bottom = box(page, ".glance")
    left, _, right, end = box(page, ".first .plot")
    assert bottom < WIDE["height"] and end < WIDE["height"]
    assert left >= WIDE["width"] / 2 - 20 and right <= WIDE["width"]
    assert box(page, "h1")[3] < box(page, ".answer")[1]


def test_a_phone_shows_difference_and_p_and_figures_with_letters_as_large(visit):
    page = visit("report", PHONE)
    for column in ("difference", "Holm p"):
        _, _, right, _ = box(page, f'#verdicts ~ .scroll th:has-text("{column}")')
        assert right <= PHONE["width"], column
    assert not page.locator(".wide").first.is_visible()
    sizes = page.eval_on_selector_all(
        ".slim svg text", "all => all.map(e => e.getBoundingClientRect().height)"
    )
    assert len(sizes) > 50 and min(sizes) >= 10  # pixels
    assert page.locator(".slim svg text", has_text="alibi").first.is_visible()
    style = "e => getComputedStyle(e).backgroundAttachment"
    assert "scroll" in page.eval_on_selector(".scroll", style)  # a shadow where more is


def luminance(colour):
    """Of rgb(…), by WCAG."""
    rgb = np.array([int(x) for x in re.findall(r"\d+", colour)[:3]]) / 255
    rgb = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return rgb @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_in_both_modes(visit, scheme):
    page = visit("report", color_scheme=scheme)
    paper = luminance(page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor"))
    assert (paper < 0.05) == (scheme == "dark")
    for selector, field, least in [
        *(("h1", "color", 7), ("td", "color", 4.5), (".note", "color", 4.5), ("a", "color", 4.5)),
        (".wide svg text", "fill", 4.5),
        (".wide svg .scheme > path", "stroke", 3),
        (".swatch polygon", "fill", 3),
    ]:
        styles = f"all => all.map(e => getComputedStyle(e).{field})"
        found = {x for x in page.eval_on_selector_all(selector, styles) if x.startswith("rgb(")}
        assert found, selector
        for colour in found:
            low, high = sorted((paper, luminance(colour)))
            assert (high + 0.05) / (low + 0.05) >= least, (selector, colour)


def test_print_opens_what_is_folded_and_drops_what_is_clicked(visit):
    page = visit("report")
    assert not page.get_by_text("model.encoding").last.is_visible()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.get_by_text("model.encoding").last.is_visible()
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 without its margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    position = page.eval_on_selector(".legend", "e => getComputedStyle(e).position")
    assert position == "static" and not page.locator(".contents").is_visible()
    assert page.pdf(format="A4")[:4] == b"%PDF"


# The explorer, held to pe_jax. Python gives frequencies and slopes in float32: 2⁻²³ of each.
ROUNDING = 2.0**-23


def scaled(kind, factor, original):
    return {
        "none": lambda: None,
        "linear": lambda: rope_scaling.Linear(factor),
        "ntk": lambda: rope_scaling.NTK(factor),
        "yarn": lambda: rope_scaling.YaRN(factor, original),
        "llama3": lambda: rope_scaling.Llama3(factor, original_length=original),
    }[kind]()


KINDS = ("none", "linear", "ntk", "yarn", "llama3")


def test_the_frequencies_and_decays_of_the_page_are_those_of_python(visit):
    page = visit("explorer")
    grid = [*itertools.product((1e2, 1e4, 5e5, 1e6), (8, 64, 128, 250), KINDS, (1, 4.5, 32))]
    originals = [(256, 4096, 131072)[i % 3] for i in range(len(grid))]
    settings = [
        {"base": b, "width": w, "kind": k, "factor": f, "original": o}
        for (b, w, k, f), o in zip(grid, originals, strict=True)
    ]
    distances = [0, 1, 7, 100, 1000]
    found = page.evaluate(
        """([grid, distances]) => grid.map((s) => {
            const theta = formulas.frequencies(s.width, s.base, s);
            return [theta, formulas.meanProduct(theta, distances),
                    formulas.bound(theta, distances), formulas.attentionFactor(s)];
        })""",
        [settings, distances],
    )
    at = np.asarray(distances)
    for s, (theta, mean, bound, factor) in zip(settings, found, strict=True):
        scaling = scaled(s["kind"], s["factor"], s["original"])
        ours = np.asarray(rope.frequencies(s["width"], s["base"], scaling), np.float64)
        np.testing.assert_allclose(theta, ours, rtol=ROUNDING, err_msg=str(s))
        # an angle of d·θ errs by d·2⁻²⁴, and a cosine by no more
        np.testing.assert_allclose(mean, explore.mean_product(ours, at), atol=1e-4)
        np.testing.assert_allclose(bound, explore.bound(ours, at), atol=1e-4)
        gain = getattr(scaling, "attention_factor", 1.0)
        assert factor == pytest.approx(gain, rel=1e-12)


def test_the_slopes_biases_and_buckets_of_the_page_are_those_of_python(visit):
    page = visit("explorer")
    distances, heads = np.arange(-700, 701), [1, 2, 3, 7, 8, 12, 33, 64]
    slopes, biases = page.evaluate(
        """([heads, distances]) => [heads.map(formulas.slopes),
            formulas.slopes(12).map((slope) => formulas.alibi(slope, distances))]""",
        [heads, distances.tolist()],
    )
    for count, found in zip(heads, slopes, strict=True):
        np.testing.assert_allclose(found, np.asarray(alibi.slopes(count)), rtol=ROUNDING)
    np.testing.assert_allclose(biases, np.asarray(alibi.bias(distances, 12)), rtol=2 * ROUNDING)
    grid = [
        (count, longest, both)
        for count, longest, both in itertools.product((4, 6, 32, 128), (65, 500), (0, 1))
    ]
    found = page.evaluate(
        """([grid, distances]) => grid.map(([count, maxDistance, both]) =>
            formulas.buckets(distances, { count, maxDistance, bidirectional: Boolean(both) }))""",
        [grid, distances.tolist()],
    )
    for (count, longest, both), ours in zip(grid, found, strict=True):
        np.testing.assert_array_equal(
            ours, np.asarray(t5.bucket(distances, count, longest, bool(both)))
        )


def set_to(page, **values):
    for name, value in values.items():
        field = page.locator(f"#{name.replace('_', '-')}")
        field.fill(str(value))
        field.dispatch_event("change")


def drawn(page, chart, line=0):
    """What a chart's line shows, read back from its pixels: [points] in the axis' units."""
    found = page.evaluate(
        """([id, line]) => {
            const path = document.querySelectorAll(`#${id} .series`)[line].getAttribute("d");
            return { path, ...widgets.drawn[id], box: widgets.box };
        }""",
        [chart, line],
    )
    height = np.asarray([float(y) for y in re.findall(r"[ML][^,]+,([-\d.e]+)", found["path"])])
    box, (low, high) = found["box"], found["yRange"]
    bottom = box["height"] - box["bottom"]
    return low + (bottom - height) / (bottom - box["top"]) * (high - low)


def test_what_is_drawn_follows_every_control(visit):
    page = visit("explorer")
    page.locator("#scaling").select_option("yarn")
    set_to(page, base=500000, width=64, factor=4, original=2048, reach=100)
    theta = np.asarray(rope.frequencies(64, 5e5, rope_scaling.YaRN(4, 2048)), np.float64)
    at = np.arange(101)
    np.testing.assert_allclose(drawn(page, "decay", 1), explore.mean_product(theta, at), atol=1e-4)
    plain = np.asarray(rope.frequencies(64, 5e5), np.float64)
    np.testing.assert_allclose(drawn(page, "decay", 0), explore.mean_product(plain, at), atol=1e-4)
    waves = page.evaluate("widgets.drawn.waves.series[1].y")
    np.testing.assert_allclose(waves, 2 * np.pi / theta, rtol=ROUNDING)
    far = page.evaluate("widgets.drawn.bound.x")
    for line, one in enumerate((plain, theta)):
        want = explore.bound(one, np.asarray(far))
        found = page.evaluate(f"widgets.drawn.bound.series[{line}].y")
        np.testing.assert_allclose(found, want, atol=1e-3)  # theta is float32, far is 32,768
    set_to(page, rope_tokens=40)
    values = np.asarray(page.evaluate("widgets.drawn['rope-map'].values"), float)
    assert np.isnan(values[:39]).all()  # what lies ahead
    np.testing.assert_allclose(values[39:], explore.mean_product(theta, np.arange(40)), atol=1e-6)
    set_to(page, heads=12, head=9, alibi_tokens=32)
    slopes = page.evaluate("widgets.drawn.slopes.series")
    np.testing.assert_allclose(slopes[0]["y"], np.asarray(alibi.slopes(12)), rtol=ROUNDING)
    assert slopes[1]["x"] == [9] and slopes[1]["y"] == [slopes[0]["y"][8]]
    values = np.asarray(page.evaluate("widgets.drawn['alibi-map'].values"), float)
    assert np.isnan(values[:31]).all()
    np.testing.assert_allclose(values[31:], np.asarray(alibi.bias(np.arange(32), 12))[8], atol=1e-6)
    bias = np.asarray(alibi.bias(np.arange(32), 12))
    lines = page.locator("#alibi-bias .series").count()
    np.testing.assert_allclose(drawn(page, "alibi-bias", lines - 1), bias[8], atol=1e-6)
    set_to(page, count=20, max_distance=60, t5_tokens=32)
    page.locator("#bidirectional").check()
    values = page.evaluate("widgets.drawn['t5-map'].values")
    distances = np.arange(-31, 32)
    np.testing.assert_array_equal(values, np.asarray(t5.bucket(distances, 20, 60, True)))


@pytest.mark.parametrize("count, reach, both", [(32, 128, False), (32, 32, False), (16, 43, True)])
def test_what_is_said_of_buckets_is_so(visit, count, reach, both):
    page = visit("explorer")
    if both:
        page.locator("#bidirectional").check()
    set_to(page, count=count, max_distance=reach)
    index = np.asarray(t5.bucket(np.arange(2 * reach), count, reach, both))
    sizes = np.bincount(index)[index]
    words = page.locator("#t5-said").inner_text()
    alone, last = (
        int(n) for n in re.findall(r"up to (\d+) have one each.* from (\d+) on", words)[0]
    )
    assert alone == (sizes > 1).argmax() - 1 and last == (index == index.max()).argmax()


def test_a_curve_stays_in_its_frame(visit):
    page = visit("explorer")
    set_to(page, base=10, width=8, reach=512)
    low, _ = page.evaluate("widgets.drawn.decay.yRange")
    theta = np.asarray(rope.frequencies(8, 10.0), np.float64)
    least = explore.mean_product(theta, np.arange(513)).min()
    np.testing.assert_allclose(low, least, atol=1e-6)
    assert least < -0.9


def pixels(page, canvas):
    """RGB of a map: [queries, keys, 3]."""
    found = page.eval_on_selector(
        f"#{canvas}",
        """c => [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data]""",
    )
    side = int((len(found) // 4) ** 0.5)
    return np.asarray(found).reshape(side, side, 4)[..., :3]


def test_a_map_shows_the_value_of_each_pair(visit):
    page = visit("explorer")
    set_to(page, t5_tokens=40, count=8, max_distance=20)
    image = pixels(page, "t5-map")
    bucket = np.asarray(t5.bucket(np.subtract.outer(np.arange(40), np.arange(40)), 8, 20))
    seen = np.tril(np.ones((40, 40), bool))
    assert (image[~seen] == 255).all()
    colours = {n: {tuple(c) for c in image[seen & (bucket == n)].tolist()} for n in range(8)}
    assert all(len(shades) == 1 for shades in colours.values())  # a bucket has one colour
    assert len(set.union(*colours.values())) == 8
    darkness = [sum(*shades) for shades in colours.values()]
    assert darkness == sorted(darkness, reverse=True)  # and later buckets are darker


def test_sliders_move_by_keys_and_keep_within_their_bounds(visit):
    page = visit("explorer")
    before = page.locator("#decay path.series").get_attribute("d")
    page.get_by_label("head width, slider").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#width").input_value() == "130"
    assert page.locator("#decay path.series").get_attribute("d") != before
    set_to(page, head=8, width=7, base="")
    assert page.locator("#width").input_value() == "8"
    assert page.locator("#base").input_value() == "10000"
    set_to(page, heads=4)
    assert page.locator("#head").input_value() == "4"  # there is no eighth head any more
    set_to(page, max_distance=20, count=128)
    assert page.locator("#max-distance").input_value() == "65"  # above the exact buckets
    set_to(page, reach=20)
    page.get_by_label("distance of the decay, slider").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#reach").input_value() == "21"  # a step of the slider is less than a token
    page.get_by_label("tokens trained on, slider").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#original").input_value() == "4096"
