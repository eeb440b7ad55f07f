"""The page of a comparison: what it shows, escapes and links to."""

import base64
import hashlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments.reporting import html_page, results, statistics
from experiments.reporting.comparison import results_of_papers, speed_ratios
from experiments.running.files import table as losses_table
from tests.reporting.comparisons import DRAWN, HOSTILE, TRAIN, Page, build, table

pytestmark = pytest.mark.xdist_group("report")


def test_missing_diverged_and_undefined_are_words_never_numbers(whole, page):
    rows = {row["encoding"]: row for row in table(whole / "verdicts.csv")}
    assert rows["shaw"]["verdict"] == "missing seed 2"
    assert rows["deberta"]["verdict"] == "diverged in seed 1"
    assert rows["learned"]["verdict"] == "not defined"
    assert {rows[n]["difference"] for n in ("shaw", "deberta", "learned")} == {""}
    shown = {
        (r.scheme, r.seed, r.length): r for r in losses_table.read(whole / "loss_by_length.csv")
    }
    assert shown["shaw", 2, 64].status == "missing" and shown["deberta", 1, 64].value is None
    assert shown["learned", 0, 64].value and shown["learned", 0, 128].status == "not defined"
    for words in ("missing seed 2", "diverged in seed 1", "not defined", "loss is NaN at step 7"):
        assert words in page.text


def test_hostile_names_are_text_and_nothing_is_fetched(page):
    assert HOSTILE in page.text
    assert "</style><b>" in page.text
    names = {tag for tag, _ in page.tags}
    assert not names & {"iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
                assert re.match(r"(#|data:|figures/[\w.-]+$|\w+\.csv$)", value), (tag, value)
            assert "url(http" not in (value or "")
    assert len(page.ids) == len(set(page.ids))


# 81
def test_a_path_that_is_not_utf8_is_shown_with_its_bytes(fake, no_pictures):
    folder = fake(["rope", "nope"], speed=False, command="compare --config.data=text:caf\udce9")
    text = build(folder).read_text(encoding="utf-8")
    assert "text:caf\\udce9" in text


def test_the_one_script_is_ours_and_the_policy_allows_no_other(page):
    (script,) = page.scripts
    assert script == (html_page.TEMPLATES / "comparison.js").read_text(encoding="utf-8")
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.split("; ") == [
        *("default-src 'none'", "img-src data:", "style-src 'unsafe-inline'"),
        f"script-src 'sha256-{digest}'",
    ]


COLOUR = re.compile(r"var\(--c\d\)")


def stray(element, inside=False):
    """Elements in a scheme's colour that are not in its group: they would not be isolated."""
    inside = inside or element.get("class") == "scheme"
    found = [] if inside or not COLOUR.search(element.get("style", "")) else [element]
    return found + [bad for child in element for bad in stray(child, inside)]


def test_every_figure_says_which_lines_are_of_which_scheme(whole, page):
    schemes = {str(i) for i in range(len(DRAWN) + 1)}
    text = (whole / "report.html").read_text(encoding="utf-8")
    figures = dict(
        re.findall(r'aria-label="([^"]*)">(<div class="wide">.*?</svg>\s*</div>)', text, re.S)
    )
    slim = re.findall(r'<div class="slim">(<svg.*?</svg>)', text, re.S)
    assert len(slim) == len(figures) >= 8
    undecided = {"learned", "shaw", "deberta"}
    for words, missing in [
        ("to rope against context length, non-overlapping", {"shaw", "deberta"}),
        ("Loss in nats per token against context length, sliding", set()),
        ("position in the context", undecided),
        ("training step, time", set()),
        ("the step, one thin line per run", set()),
        ("95 % simultaneous (Holm) intervals", {*undecided, "rope"}),
    ]:
        (svg,) = [svg for alt, svg in figures.items() if words in alt]
        found = set(re.findall(r'<g class="scheme" data-s="(\d+)"', svg))
        assert found >= schemes - {str(DRAWN.index(name)) for name in missing}, words
    for svg in (*figures.values(), *slim):
        assert not stray(ElementTree.fromstring(svg))
    for i in schemes:  # a line of the legend, and a section
        assert f"scheme-{i}" in page.ids
        assert ("a", f"#scheme-{i}") in [(tag, a.get("href")) for tag, a in page.tags]


def test_the_first_screen_has_the_finding_and_both_losses(fake, no_pictures):
    effects = {"rope": 0.3, "alibi": -0.1, "t5": 0.02}
    secondary = {"protocol": "non-overlapping", "length": TRAIN}
    folder = fake([*effects], effects=effects, speed=False, secondary=secondary)
    build(folder)
    found = Page((folder / "report.html").read_text(encoding="utf-8")).text
    first = found[found.index("Over three seeds") :].partition("What was asked")[0]
    assert first.startswith(
        "Over three seeds, alibi and t5 beat rope at 512 tokens; at the trained"
    )
    losses = {
        (scheme.name, length): scheme.mean("non-overlapping", length)
        for scheme in results.read(folder).schemes
        for length in (64, 512)
    }
    assert len(losses) == 6 and all(f"{loss:.3f}" in first for loss in losses.values())
    rows = {r["encoding"]: r for r in table(folder / "verdicts.csv") if r["length"] == "512"}
    for name in ("alibi", "t5"):
        assert f"{float(rows[name]['difference']):.3f}".replace("-", "\N{MINUS SIGN}") in first


def test_rows_are_sorted_by_difference_and_say_whose_they_are(whole):
    text = (whole / "report.html").read_text(encoding="utf-8")
    body = text[text.index('id="verdicts"') :].partition("</tbody>")[0]
    found = re.findall(r'data-s="(\d+)".*?scheme-(\d+)".*?class="strong">([^<]*)<', body)
    assert all(row == link for row, link, _ in found) and len(found) == len(DRAWN) + 1
    known = [float(x.replace("\N{MINUS SIGN}", "-")) for *_, x in found if x != "—"]
    assert known == sorted(known) and len(known) > 5


def test_the_commands_and_what_is_not_default_are_shown(page):
    assert "git checkout 0123abc python -m experiments.compare --steps=400" in page.text
    assert "model.depth 2 —" in page.text  # no such field: there is no default
    assert "data embedded embedded" not in page.text


def test_every_link_leads_somewhere_and_every_image_has_its_data(whole, page):
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert links
    inside = {link[1:] for link in links if link.startswith("#")}
    assert inside <= {*page.ids}
    assert all((whole / link).is_file() for link in links if not link.startswith("#"))
    images = list((whole / "figures").glob("*.png"))
    assert len(images) >= len(DRAWN) + 6
    data = [link for link in links if link.endswith(".csv")]
    assert len(data) > 8 and all(len(table(whole / link)) > 0 for link in data)
    assert len(table(whole / "loss_by_length.csv")) == (len(DRAWN) + 1) * 2 * 4 * 3
    ratios = {(r["encoding"], r["measure"]): r for r in table(whole / "speed.csv")}
    assert float(ratios["nope", "train_ms"]["median_ratio"]) == 1


def test_what_others_published_is_marked_as_theirs_and_in_no_table_of_ours(whole, page):
    assert page.text.count("Published by others: ") == 3 and "132.41" in page.text
    assert "Levels do not compare" in page.text
    assert not any("132.41" in path.read_text() for path in whole.rglob("*.csv"))


def test_speeds_of_others_and_ours_are_ratios_of_time_where_less_is_better(page):
    head, rows = results_of_papers.SPEED.head, results_of_papers.SPEED.rows
    sinusoidal, rotary, t5, alibi = ([*map(float, row[1:])] for row in rows)
    assert sinusoidal == [1, 1, 1, 19.2]
    np.testing.assert_allclose(rotary[:3], [26 / 17.7, 77.8 / 39.4, 22.8 / 19.2], atol=0.005)
    others = sinusoidal, rotary, alibi
    assert min(t5[:3]) > 1 and t5[1] > max(row[1] for row in others)  # the slowest of all
    assert all("less is better" in words for words in head if "÷" in words)
    assert "training, time ÷ sinusoidal (less is better)" in page.text and "1.47" in page.text
    batch, ratio = 4, statistics.ratio([3.0], [2.0])
    cell = speed_ratios.speed_cell("eval_ms", {"eval_ms": [2.0, 3.0, 4.0]}, ratio, 64, batch)
    assert cell == "11.72 (1.50×)"  # 3 ms of 256 tokens
    assert speed_ratios.speed_cell("decode_ms", {"decode_ms": [1.0]}, None, 64, batch) == "250.00"
