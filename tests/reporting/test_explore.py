"""The pictures of the theory: the curves are what they say, and the files can be opened."""

import csv
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import image

from experiments.programs import explore
from pe_jax.encodings import rope
from tests.util import noise

E, THETA = 16, np.asarray(rope.frequencies(16), np.float64)


def rotated(x, distance):
    return np.asarray(rope.rotate(x[:, None], np.asarray([distance]), rope.frequencies(E)))[:, 0]


@pytest.mark.parametrize("distance", [0, 1, 7, 200])
def test_the_mean_product_is_that_of_random_vectors(distance):
    q = noise(200_000, 1, E)
    found = (rotated(q, distance) * q).sum(-1).mean() / (q * q).sum(-1).mean()
    mean = explore.mean_product(THETA, np.asarray([distance]))
    np.testing.assert_allclose(found, mean[0], atol=0.01)


def test_the_bound_holds_for_any_vectors():
    """RoFormer, eq. 37: |q·R_d k| ≤ max|h_{i+1} - h_i|·Σ|S_i|, h_i the product of pair i."""
    q, k = noise(2, 100, 1, E).astype(np.float64)
    h = np.stack(np.split(q, 2, -1), -1) @ [1, 1j] * (np.stack(np.split(k, 2, -1), -1) @ [1, -1j])
    steps = np.abs(np.diff(h, axis=-1, append=0)).max(-1)
    pairs = E // 2
    for distance in (0, 1, 5, 40, 300):
        size = np.abs((rotated(q.astype("f"), distance) * k).sum(-1))
        sums = explore.bound(THETA, np.asarray([distance]))[0] * pairs * (pairs + 1) / 2
        assert (size <= steps * sums + 1e-3).all()
    assert explore.bound(THETA, np.asarray([0]))[0] == pytest.approx(1)
    assert (explore.bound(np.full(8, 0.3), np.arange(50)) > 1 - 1e-9).all()  # one angle: no decay


def test_each_picture_is_written_as_svg_png_and_csv(tmp_path):
    figures = [draw for draw in explore.FIGURES if draw is not explore.stretched_waves]
    *pictures, page = explore.write(tmp_path, figures)
    for path in pictures:
        check(path)
    text = page.read_text()
    assert text.count("<svg") >= len(pictures) and text.count("<script>") == 1
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text)  # nothing is fetched


def test_the_stretched_waves_are_drawn(tmp_path):
    path, _ = explore.write(tmp_path, [explore.stretched_waves])
    check(path)
    with path.with_suffix(".csv").open() as file:
        rows = [(row["method"], float(row["ratio"])) for row in csv.DictReader(file)]
    by_method = {m: np.asarray([r for n, r in rows if n == m]) for m, _ in rows}
    assert set(by_method) == {"linear", "ntk", "yarn", "llama3", "longrope"}
    np.testing.assert_allclose(by_method["linear"], 32, rtol=1e-6)
    np.testing.assert_allclose(by_method["longrope"], explore.PHI_LONG, rtol=1e-6)
    for method in ("ntk", "yarn", "llama3"):  # fast waves stay, the slowest is stretched whole
        np.testing.assert_allclose(by_method[method][[0, -1]], [1, 32], rtol=1e-6)


def check(path):
    """The three files are there, well-formed, and hold a picture and data."""
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert image.imread(path.with_suffix(".png")).std() > 0.01
    assert "$" not in path.read_text()  # mathtext is off: a formula would be shown as its source
    with path.with_suffix(".csv").open() as file:
        assert len(list(csv.reader(file))) > 40
