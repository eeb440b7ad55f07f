"""The explorer in a real browser, held to pe_jax: `make browser`; browser.py starts it."""

import itertools
import re

import numpy as np
import pytest

from pe_jax.encodings import alibi, rope, rope_scaling, t5
from tests.reporting import browser
from tests.util import noise

pytestmark = browser.MARKS


def mean_product(theta, distance):
    """E[q·R_d q]/E[q·q] over normal q: the mean of cos(d·θ_i) over the pairs."""
    return np.cos(distance[:, None] * theta).mean(1)


def product_bound(theta, distance):
    """The mean of |S_i|, S_i = Σ_{j<i} e^{i·d·θ_j}, over i ≤ E/2, relative to its value at 0.

    It bounds |q·R_d k| up to a factor of q and k alone: RoFormer (arXiv 2104.09864), §3.4.3.
    """
    sums = np.abs(np.exp(1j * distance[:, None] * theta).cumsum(1)).sum(1)
    return sums / np.arange(1, theta.size + 1).sum()


E, THETA = 16, np.asarray(rope.frequencies(16), np.float64)


def rotated(x, distance):
    return np.asarray(rope.rotate(x[:, None], np.asarray([distance]), rope.frequencies(E)))[:, 0]


@pytest.mark.parametrize("distance", [0, 1, 7, 200])
def test_the_mean_product_is_that_of_random_vectors(distance):
    q = noise(200_000, 1, E)
    found = (rotated(q, distance) * q).sum(-1).mean() / (q * q).sum(-1).mean()
    mean = mean_product(THETA, np.asarray([distance]))
    np.testing.assert_allclose(found, mean[0], atol=0.01)


def test_the_bound_holds_for_any_vectors():
    """RoFormer, eq. 37: |q·R_d k| ≤ max|h_{i+1} - h_i|·Σ|S_i|, h_i the product of pair i."""
    q, k = noise(2, 100, 1, E).astype(np.float64)
    h = np.stack(np.split(q, 2, -1), -1) @ [1, 1j] * (np.stack(np.split(k, 2, -1), -1) @ [1, -1j])
    steps = np.abs(np.diff(h, axis=-1, append=0)).max(-1)
    pairs = E // 2
    for distance in (0, 1, 5, 40, 300):
        size = np.abs((rotated(q.astype("f"), distance) * k).sum(-1))
        sums = product_bound(THETA, np.asarray([distance]))[0] * pairs * (pairs + 1) / 2
        assert (size <= steps * sums + 1e-3).all()
    assert product_bound(THETA, np.asarray([0]))[0] == pytest.approx(1)
    assert (product_bound(np.full(8, 0.3), np.arange(50)) > 1 - 1e-9).all()  # one angle: no decay


# Python gives frequencies and slopes in float32: 2⁻²³ of each.
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
        np.testing.assert_allclose(mean, mean_product(ours, at), atol=1e-4)
        np.testing.assert_allclose(bound, product_bound(ours, at), atol=1e-4)
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
    np.testing.assert_allclose(drawn(page, "decay", 1), mean_product(theta, at), atol=1e-4)
    plain = np.asarray(rope.frequencies(64, 5e5), np.float64)
    np.testing.assert_allclose(drawn(page, "decay", 0), mean_product(plain, at), atol=1e-4)
    waves = page.evaluate("widgets.drawn.waves.series[1].y")
    np.testing.assert_allclose(waves, 2 * np.pi / theta, rtol=ROUNDING)
    far = page.evaluate("widgets.drawn.bound.x")
    for line, one in enumerate((plain, theta)):
        want = product_bound(one, np.asarray(far))
        found = page.evaluate(f"widgets.drawn.bound.series[{line}].y")
        np.testing.assert_allclose(found, want, atol=1e-3)  # theta is float32, far is 32,768
    set_to(page, rope_tokens=40)
    values = np.asarray(page.evaluate("widgets.drawn['rope-map'].values"), float)
    assert np.isnan(values[:39]).all()  # what lies ahead
    np.testing.assert_allclose(values[39:], mean_product(theta, np.arange(40)), atol=1e-6)
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
    least = mean_product(theta, np.arange(513)).min()
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
