"""One colour and mark per scheme: by name, whatever is compared, and for colour-blind readers."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from experiments.reporting import plotting
from experiments.reporting.results import Scheme
from experiments.reporting.scheme_styles import KNOWN, MARKERS, PALETTE, style, styles
from experiments.running.files.table import read_csv
from pe_jax import ENCODINGS
from pe_jax.encodings.rope_scaling import SCALINGS
from tools import results_docs

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
BACKGROUNDS = ("#ffffff", "#11161d")
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ],
    "deuteranopia": [
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ],
    "tritanopia": [
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ],
}
XYZ = np.array([(0.4125, 0.3576, 0.1804), (0.2127, 0.7152, 0.0722), (0.0193, 0.1192, 0.9503)])


def published():
    """The schemes of each published table, once, as its figure names them."""
    found = set()
    for path in FIGURES.glob("*.csv"):
        short = {} if path.stem.startswith("extend_") else results_docs.PATTERNS
        names = (row.get("scheme") or row["encoding"] for row in read_csv(path))
        found.add(tuple(dict.fromkeys(short.get(name, name) for name in names)))
    return found


def linear(colour):
    """Linear RGB of #rrggbb."""
    x = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB, white of D65."""
    x = XYZ @ rgb / XYZ.sum(1)
    a, b, c = np.where(x > (6 / 29) ** 3, np.cbrt(x), x / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * b - 16, 500 * (a - b), 200 * (b - c)])


def distance(one, other, vision):
    """ΔE (1976) of two colours, as they are seen."""
    matrix = np.array(VISION[vision])
    seen = [lab((matrix @ linear(colour)).clip(0, 1)) for colour in (one, other)]
    return np.linalg.norm(seen[0] - seen[1])


def contrast(one, other):
    """The contrast ratio of WCAG."""
    low, high = sorted(float(XYZ[1] @ linear(c)) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("width", [12, 20, 28])
def test_names_that_would_be_cut_alike_are_told_apart(width):
    windows = [f"rope@window={n}*3,rope(base=1e6)" for n in (16, 32, 320)]
    names = ["rope", *windows, "rope@window=16*3,nope", "rope@window=32*3,nope"]
    shown = plotting.labels(names, width)
    assert len({*shown}) == len(names) and shown[0] == "rope"
    assert all(len(x) <= width for x in shown)
    assert plotting.labels(windows[:1], width) == [plotting.label(windows[0], width)]


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("dark", [0, 1], ids=["light", "dark"])
def test_schemes_that_share_a_mark_are_told_apart_by_any_reader(vision, dark):
    styles = {name: style(name) for name in KNOWN}
    pairs = [
        (a, b) for a, b in itertools.combinations(KNOWN, 2) if styles[a].marker == styles[b].marker
    ]
    assert len(pairs) > 50
    colours = {name: PALETTE[styles[name].colour][dark] for name in KNOWN}
    least = min((distance(colours[a], colours[b], vision), a, b) for a, b in pairs)
    assert least[0] > 17, least  # about 2 is a just noticeable difference


def test_colours_stand_out_from_the_page_and_are_not_those_of_axes():
    for pair, background in itertools.product(PALETTE, BACKGROUNDS):
        colour = pair[BACKGROUNDS.index(background)]
        assert contrast(colour, background) >= 3, (colour, background)
        for ink in (plotting.INK, plotting.MUTED, plotting.RULE):
            assert distance(colour, ink, "normal") > 10, (colour, ink)


def test_every_scheme_has_its_own_pair_of_colour_and_mark_by_name():
    names = {*ENCODINGS, *SCALINGS, *KNOWN}
    assert len({style(name)[:2] for name in names}) == len(names) < len(PALETTE) * len(MARKERS)
    first, last = (plotting.look(Scheme("t5", "t5", k, {})) for k in (0, 7))
    assert first | {"gid": ""} == last | {"gid": ""}  # whatever is compared before it
    assert plotting.paint(Scheme("t5", "", 7, {}))["gid"] == "scheme-7"


def test_settings_keep_the_colour_and_unknown_names_do_not_take_the_mark_of_a_known_one():
    plain = style("rope")
    for name in ("rope(base=5e5)", "rope, randomized", "rope ×4"):
        variant = style(name)
        assert variant.colour == plain.colour and variant.marker != plain.marker
        assert variant.dashes != "-" and variant == style(name)
    yarn = style("rope-scaling-yarn", "rope(scaling=yarn(factor=4.0,original_length=64))")
    assert yarn.colour == style("yarn").colour and style("yarn ×8").colour == yarn.colour
    for name in ("t5+rope", "rope(base=5e5)+t5", "t5,rope", "mine"):
        assert style(name)[:2] not in {style(known)[:2] for known in KNOWN}


@pytest.mark.parametrize("names", sorted(published()), ids=len)
def test_schemes_of_one_published_table_are_told_apart_by_any_reader(names):
    """By colour; settings of a scheme, which share its colour, by marker and dashes."""
    chosen = styles([(name, name) for name in names])
    pairs = itertools.combinations(zip(names, chosen, strict=True), 2)
    for (a, one), (b, other) in pairs:
        if one.colour == other.colour:
            assert any(a.startswith(x) and b.startswith(x) for x in KNOWN), (a, b)
            assert one.marker != other.marker and one.dashes != other.dashes, (a, b)
            continue
        for vision, dark in itertools.product(VISION, (0, 1)):
            seen = distance(PALETTE[one.colour][dark], PALETTE[other.colour][dark], vision)
            assert seen > 17, (a, b, vision, dark)


def test_patterns_of_one_comparison_never_share_colour_and_mark():
    """Whatever their texts choose: 20 unknown names beside four known ones, and settings."""
    known = ["nope", "t5", "rope", "alibi"]
    patterns = [f"rope@window={2**k}*{n},nope" for k in range(4) for n in range(1, 6)]
    several = [f"rope base {base}" for base in range(8)]
    names = [*known, *patterns, *several]
    chosen = styles([(name, name) for name in names])
    assert len({one[:2] for one in chosen}) == len(names)
    assert [one for one, name in zip(chosen, names, strict=True) if name in KNOWN] == [
        style(name) for name in known
    ]
    few = styles([(name, name) for name in [*known, *patterns[:6]]])
    assert len({one.colour for one in few}) == len(few)  # unused colours first
    drawn = results_docs.losses(FIGURES / "released.csv", 128).schemes
    assert len({(x["color"], x["marker"]) for x in map(plotting.look, drawn)}) == len(drawn)
