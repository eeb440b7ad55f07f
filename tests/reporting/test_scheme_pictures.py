"""The report's picture of each scheme: what attention adds, with the trained parameters."""

import numpy as np
import pytest

import pe_jax
from experiments.reporting import results
from experiments.reporting.comparison import scheme_pictures
from pe_jax.encodings import ENCODINGS
from tests.reporting.comparisons import LENGTHS, table

pytestmark = pytest.mark.xdist_group("report")


def drawn(folder):
    """The rows of each scheme's portrait."""
    read, figures = results.read(folder), folder / "figures"
    pictures = {
        scheme.name: scheme_pictures.draw_or_explain(read, scheme, figures)
        for scheme in read.schemes
    }
    assert not [picture["caption"] for picture in pictures.values() if not picture["svg"]]
    return {name: table(figures / f"{picture['stem']}.csv") for name, picture in pictures.items()}


@pytest.mark.slow
def test_every_scheme_is_drawn_and_what_leaves_scores_alone_adds_nothing(fake):
    specs = [
        scheme_pictures.DRAWN.get(name, name)
        for name, kind in ENCODINGS.items()
        if kind().claims.axes == 1
    ]
    folder = fake(specs, speed=False)
    for path in folder.rglob("encoding.npz"):  # as if trained: what begins at zero, as CoPE, moved
        with np.load(path) as arrays:
            moved = {k: x if x.any() else x + np.float32(0.1) for k, x in arrays.items()}
        np.savez(path, **moved)
    found = drawn(folder)
    silent = {name for name, rows in found.items() if not any(float(r["value"]) for r in rows)}
    assert len(found) == len(specs) and silent == {"nope", "sink", "rotated_values"}


def test_a_portrait_is_what_attention_adds_with_the_trained_parameters(fake):
    folder = fake(["nope", "t5", "alibi"], speed=False)
    found = drawn(folder)
    assert not any(float(row["value"]) for row in found["nope"])
    panels = {row["panel"] for row in found["nope"]}
    assert panels == {"One token, repeated", "Random tokens"}
    slopes = np.asarray(pe_jax.encodings.alibi.slopes(4))
    for row in found["alibi"]:
        if row["panel"] == "One token, repeated":
            slope = slopes[int(row["series"].removeprefix("head ")) - 1]
            want = -slope * int(row["query_or_distance"])
        else:
            want = slopes.mean() * (int(row["key"]) - int(row["query_or_distance"]))
        np.testing.assert_allclose(float(row["value"]), want, atol=2e-4)
    with np.load(folder / "runs" / "t5" / "seed0" / "encoding.npz") as arrays:
        trained = arrays["0"]
    (near,) = (
        float(r["value"])
        for r in found["t5"]
        if r["series"] == "head 2" and r["query_or_distance"] == "3"
    )
    np.testing.assert_allclose(near, trained.reshape(4, -1)[1, 3], atol=1e-5)


def test_a_portrait_is_of_the_scheme_as_it_is_at_the_longest_length(fake):
    scaled = "rope(scaling=dynamic_ntk(factor=1.0,original_length=64))"
    found = drawn(fake(["rope", scaled], speed=False))
    plain, other = (
        [row["value"] for row in found[name] if row["panel"] == "One token, repeated"]
        for name in ("rope", scaled)
    )
    assert len(plain) == len(other) == 4 * LENGTHS[-1] and plain != other
