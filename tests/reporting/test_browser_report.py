"""The report of a comparison in a real browser: `make browser`; browser.py starts it."""

import re

import numpy as np
import pytest

from tests.reporting import browser
from tests.reporting.browser import PHONE, SCHEMES, WIDE
from tests.reporting.comparisons import HOSTILE

pytestmark = browser.MARKS


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
