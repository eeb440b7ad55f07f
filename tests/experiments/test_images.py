"""Images: what the labels say is what is drawn; a ViT sees it; the comparison end to end."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from experiments.programs import images as program
from experiments.reporting import images_report, results
from experiments.reporting.results import Run, Scheme
from experiments.running.configs.images import ImagesConfig
from experiments.running.files import table
from pe_jax import positions as pos
from pe_jax.models import vit
from pe_jax.models.config import ModelConfig
from pe_jax.training import digits, images, sharding
from pe_jax.training.config import MeshConfig
from pe_jax.validation import ConfigError
from tests import tiny
from tests.trainers import TRIALS

COUNT = 64
pytestmark = pytest.mark.xdist_group("images")
VIEWS = {"trained": (32, 1.0), "wider": (64, 1.0), "finer": (64, 2.0)}


def drawn(kind, seed=0):
    return [np.asarray(x) for x in images.draw(jax.random.key(seed), COUNT, *VIEWS[kind])]


def red_and_blue(pixels):
    """Which pixels are of the red disc, which of the blue: bool [2, B, H, W]."""
    others = [pixels[..., [1, 2]], pixels[..., [0, 1]]]
    return np.stack([pixels[..., 2 * n] - x.max(-1) for n, x in enumerate(others)]) > 2


def centres(pixels):
    """Centres of the red and the blue disc in pixels: [2, B, 2]."""
    inside, at = red_and_blue(pixels), np.arange(pixels.shape[1]) + 0.5
    row = (inside.sum(3) * at).sum(2) / inside.sum((2, 3))
    return np.stack([row, (inside.sum(2) * at).sum(2) / inside.sum((2, 3))], axis=-1)


@pytest.mark.parametrize("kind", VIEWS)
def test_the_label_is_where_the_blue_disc_is_seen_from_the_red_one(kind):
    pixels, labels = drawn(kind)
    red, blue = centres(pixels)
    row, column = (blue - red).T / VIEWS[kind][1]
    far = np.hypot(row, column) > 14
    direction = np.where(
        abs(column) > abs(row), np.where(column > 0, 0, 2), np.where(row > 0, 1, 3)
    )
    np.testing.assert_array_equal(labels, direction + 4 * far)
    assert set(labels.tolist()) == set(range(images.CLASSES))


def test_a_wider_view_has_pairs_further_apart_and_a_finer_one_the_same_in_more_pixels():
    apart = {kind: np.linalg.norm(np.subtract(*centres(drawn(kind)[0])), axis=-1) for kind in VIEWS}
    assert apart["trained"].max() < 23.5 < 40 < apart["wider"].max() < 46
    assert apart["wider"].min() < 12
    np.testing.assert_allclose(apart["finer"], 2 * apart["trained"], atol=1.5)
    np.testing.assert_array_equal(drawn("trained")[0], drawn("trained")[0])
    assert (drawn("trained", 1)[0] != drawn("trained")[0]).any()


@pytest.mark.parametrize("kind", VIEWS)
def test_no_patch_shows_both_discs(kind):
    inside = red_and_blue(drawn(kind)[0])
    both = inside.reshape(2, COUNT, inside.shape[2] // 4, 4, -1, 4).any((3, 5)).all(0)
    assert not both.any()


@pytest.mark.parametrize("kind", [images, digits])
def test_images_are_the_same_under_64_bits(kind):
    want = kind.draw(jax.random.key(0), count=3, side=32)
    with jax.enable_x64(True):
        found = kind.draw(jax.random.key(0), count=3, side=32)
    for x, y in zip(found, want, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_a_view_without_room_is_refused():
    with pytest.raises(ValueError, match="side=32, zoom=2.0: pass side/zoom of at least 24"):
        images.draw(jax.random.key(0), 1, 32, 2.0)


def test_digits_are_whole_at_random_places_and_splits_do_not_meet():
    """Every digit, cut out of its image, is one of its split's, in pixels of its zoom."""
    pictures, labels = digits.load()
    assert pictures.shape == (1797, 8, 8) and pictures.max() == 1
    listed = [range(1797)[part] for part in digits.SPLITS.values()]
    assert sorted(sum(map(list, listed), [])) == [*range(1797)]
    for split, side, zoom in (("train", 32, 1.0), ("test", 64, 2.0)):
        part, size = digits.SPLITS[split], int(16 * zoom)
        large = jax.image.resize(pictures[part], (len(labels[part]), size, size), "linear")
        known = {
            cut_out(x)[0]: int(label)
            for x, label in zip(np.asarray(large), labels[part], strict=True)
        }
        drawn, found = digits.draw(jax.random.key(0), COUNT, side, zoom, split)
        seen, places = zip(*map(cut_out, np.asarray(drawn)[..., 0]), strict=True)
        assert [known[x] for x in seen] == found.tolist()
        assert len({*places}) > 0.8 * COUNT and np.max(places) > side - size > np.min(places)
    with pytest.raises(ValueError, match="side=32, zoom=2.0: pass side/zoom of at least 20"):
        digits.draw(jax.random.key(0), 1, 32, 2.0)


def cut_out(image):
    """What is left without empty rows and columns around it, to compare; and where it begins."""
    rows, columns = (np.nonzero(image.any(1 - axis))[0] for axis in (0, 1))
    inside = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return (inside.shape, inside.round(4).tobytes()), (int(rows[0]), int(columns[0]))


def model(encoding, **fields):
    config = ModelConfig(encoding=encoding, width=16, layers=1, heads=2, causal=False, **fields)
    return vit.ViT(config, 2, 3, 5, rngs=nnx.Rngs(0))


def test_patches_are_in_the_order_of_the_grid():
    rows, columns = np.meshgrid(np.arange(4), np.arange(6), indexing="ij")
    cut = vit.patches(jnp.stack([rows, columns], -1)[None], 2)[0].reshape(6, 4, 2)
    np.testing.assert_array_equal(cut.min(1) // 2, pos.grid(2, 3))
    with pytest.raises(ValueError, match="images of 4 × 6: the sides must be multiples of 4"):
        vit.patches(jnp.zeros((1, 4, 6, 1)), 4)


def test_an_encoder_knows_of_places_what_its_encoding_tells_it():
    pixels = np.random.default_rng(0).standard_normal((3, 4, 6, 3)).astype("f")
    places = np.asarray(pos.grid(2, 3))
    answers = {}
    for spec in ("nope", "rope_2d(channels=(4,4))", "sinusoidal_2d"):
        run, at = jax.jit(model(spec)), places[:, 0] if spec == "nope" else places
        answers[spec] = [run(pixels, positions=p) for p in (at, at + 7, at[::-1])]
        assert answers[spec][0].shape == (3, 5) and answers[spec][0].dtype == jnp.float32
    same = {
        spec: [np.allclose(first, x, atol=1e-4) for x in rest]
        for spec, (first, *rest) in answers.items()
    }
    assert same == {
        "nope": [True, True],
        "rope_2d(channels=(4,4))": [True, False],
        "sinusoidal_2d": [False, False],
    }


@pytest.mark.parametrize(
    "fields, patch, words",
    [({"causal": True}, 2, "model.causal=True: pass False"), ({}, 0, "patch=0: pass an integer")],
)
def test_a_vit_that_cannot_be_is_refused(fields, patch, words):
    config = ModelConfig(encoding="nope", **{"causal": False, **fields})
    with pytest.raises(ValueError, match=words):
        vit.ViT(config, patch, 3, 5, rngs=nnx.Rngs(0))


LEARNED = "learned_2d(height={side},width={side})"


def settings(folder, **fields) -> ImagesConfig:
    given = {
        "workdir": str(folder),
        "encodings": ("nope", LEARNED, LEARNED + "@resized"),
        "sides": (24, 48),
        "patch": 8,
        "test": 16,
    }
    return ImagesConfig(**{**TRIALS, **given, **fields})


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of a comparison with two seeds."""
    folder = tmp_path_factory.mktemp("images")
    program.main(settings(folder, seeds=2))
    return folder


def test_positions_that_differ_in_tests_alone_are_trained_once(compared, capsys):
    assert len(list(compared.rglob("seed*.json"))) == 4  # of learned_2d once for both its entries
    for field, value in (("steps", 4), ("reference", LEARNED)):
        with pytest.raises(SystemExit) as end:
            program.main(settings(compared, seeds=2, **{field: value}))
        assert end.value.code == 2
        assert f"{field}=" in capsys.readouterr().err


def test_a_table_is_not_defined_on_a_larger_image_unless_it_is_resized(compared):
    folder = compared
    rows = table.read(folder / "results.csv")
    assert len(rows) == 3 * 3 * 2
    schemes = {scheme.name: scheme for scheme in results.of_table(rows)}
    assert [*schemes] == ["nope", "learned_2d", "learned_2d, resized"]
    plain, resized = schemes["learned_2d"], schemes["learned_2d, resized"]
    config = settings(folder, seeds=2)
    trained, wider, finer = (view.test for view in program.views(config))
    assert (trained, wider, finer) == (("trained", 24), ("wider", 48), ("finer", 48))
    assert plain.cell(*trained) == resized.cell(*trained) and plain.cell(*trained).estimate
    assert plain.cell(*wider)[:2] == plain.cell(*finer)[:2] == ({}, "not defined")
    assert all(0 <= x <= 1 for x in resized.cell(*wider).values.values())
    cells = [images_report.cell(plain, view) for view in program.views(config)]
    assert cells[1:] == ["not defined"] * 2 and " ± " in cells[0]
    assert (folder / "accuracy.png").stat().st_size > 1000
    assert [*json.loads((folder / "results.json").read_text())["differences"]] == [
        *("trained", "wider", "finer")
    ]


def test_a_run_that_diverged_is_words_not_a_number(compared):
    config = settings(compared).resolved()
    rates = {"learning_rate": 0.01, "encoding_rate": 1.0}
    bad = {0: {"status": "diverged", "step": 2, **rates}}
    good = {
        0: {"status": "ok", **rates, "accuracy": {"index": dict.fromkeys(map(str, range(3)), 0.5)}}
    }
    good[0]["accuracy"]["index"] = {view.name: 0.5 for view in program.views(config)}
    learned = (config.entries[1][0], "index")
    good[0]["accuracy"]["resized"] = good[0]["accuracy"]["index"]
    _, _, resized = config.entries
    runs = {("nope", "index"): bad, learned: good, resized: good}
    schemes = results.of_table(images_report.rows(config, runs))
    cells = [[images_report.cell(s, view) for view in program.views(config)] for s in schemes]
    assert cells == [["diverged"] * 3, ["0.500"] * 3, ["0.500"] * 3]


def test_differences_to_the_reference_are_paired_by_seed_and_each_kind_of_view_is_a_family(
    tmp_path,
):
    config = settings(tmp_path, reference=LEARNED + "@resized", sides=(24, 48, 72)).resolved()
    rng, noise = np.random.default_rng(0), np.arange(5) / 100

    def entry(name, wider, finer):
        each = {("trained", 24): noise + 0.5, ("wider", 48): wider, ("finer", 48): finer}
        each[("wider", 72)] = wider if wider is None else wider + (name == "nope") * 0.02
        each[("finer", 72)] = finer
        runs = {
            k: Run(
                k,
                numbers={t: "not defined" if x is None else x[k : k + 1] for t, x in each.items()},
            )
            for k in range(5)
        }
        return Scheme(name, name, 0, runs)

    theirs = rng.uniform(0.2, 0.4, 5)
    better = entry("nope", theirs + 0.1 + noise, theirs)
    undefined = entry("learned_2d", None, None)
    reference = entry("learned_2d, resized", theirs, theirs + 0.01)
    found = images_report.differences(config, [better, undefined, reference])
    assert [*found] == ["trained", "wider", "finer"]
    assert [row["verdict"] for row in found["trained"]] == ["no difference (identical numbers)"] * 2
    (row, no_number), mean = found["wider"], 100 * (0.11 + noise.mean())
    half = stats.t.isf(0.025 / 2, 4) * 100 * noise.std(ddof=1) / np.sqrt(5)  # of two
    np.testing.assert_allclose([row[x] for x in ("points", "low")], [mean, mean - half])
    assert row["verdict"].startswith("more images right")
    assert no_number["verdict"] == "no number in both"
    assert no_number["without"] == dict.fromkeys(("wider 48", "wider 72"), "not defined")
    assert found["finer"][0]["points"] == pytest.approx(-1)
    highest = theirs.mean() + 0.12 + noise.mean(), theirs.mean() + 0.01
    assert images_report.best(config, [better, undefined, reference]) == (
        "Highest mean at 72 pixels: nope {:.2f} (wider); learned_2d, resized {:.2f} (finer)"
    ).format(*highest)
    shown = images_report.lines(found)
    assert shown[2].startswith("wider: nope minus learned_2d, resized: +13.0 points [+10.")
    twice = images_report.differences(
        config, [better, dataclasses.replace(better, name="again"), reference]
    )
    half *= stats.t.isf(0.025, 4) / stats.t.isf(0.025 / 2, 4)  # a copy does not enlarge a family
    np.testing.assert_allclose([row["low"] for row in twice["wider"]], mean - half)


def test_a_reference_that_is_none_of_the_encodings_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="reference='swim': pass one of the encodings"):
        settings(tmp_path, reference="swim").check()


def test_augmented_positions_are_drawn_in_training_and_plain_in_tests(tmp_path):
    spec = "rope_2d(base=100.0,normalized=True)"
    config = settings(tmp_path, encodings=(f"{spec}@augmented", f"{spec}@normalized"))
    assert program.grouped(config) == {(spec, c): [c] for c in ("augmented", "normalized")}
    at = program.places(2, "augmented", 3, 3)
    np.testing.assert_array_equal(at, program.places(2, "normalized", 3, 3))
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    batch = dict(zip(("images", "labels"), images.draw(jax.random.key(0), 4, 24), strict=True))
    plain, augmented = (
        program.Classifier(config, spec, at, mesh, augment) for augment in (False, True)
    )

    @jax.jit
    def loss(params, key):
        return [t.loss(t.model(params), batch, key) for t in (plain, augmented)]

    (first, drawn), (second, redrawn) = (
        loss(tiny.like(plain.shapes), jax.random.key(n)) for n in (1, 2)
    )
    assert first == second and len({*map(float, (first, drawn, redrawn))}) == 3


def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path, capsys):
    fields = {"devices": "all", "mesh": MeshConfig(data=8), "batch": 9}
    with pytest.raises(SystemExit) as end:
        program.main(settings(tmp_path / "run", **fields))
    error = capsys.readouterr().err
    assert end.value.code == 2 and "batch=9" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"encodings": ("mrope",)}, "mrope@index: an image has two axes"),
        ({"encodings": ("rope",)}, ""),
        ({"encodings": ("rope@normalized",)}, "rope@normalized: an image has two axes"),
        ({"encodings": ("swin@resized",)}, "not every encoding takes"),
        ({"encodings": ("rope_2d@pixels",)}, "rope_2d@pixels: choose one of"),
        ({"encodings": ("nope", "nope")}, "name each once"),
        ({"encodings": ("rope2d",)}, "did you mean 'rope_2d'"),
        ({"sides": (32, 24)}, "sides=(32, 24): pass ascending positive integers"),
        ({"sides": (16, 32)}, "sides=(16, 32): images='discs' need at least 24 pixels"),
        ({"images": "digits", "sides": (16, 32)}, "images='digits' need at least 20 pixels"),
        ({"images": "digit"}, "images='digit'"),
        ({"sides": (24, 44)}, "sides=(24, 44): must be multiples of patch=8"),
        ({"model": ModelConfig()}, "model.causal=True: pass False"),
    ],
)
def test_a_configuration_that_cannot_be_names_the_field_and_the_fix(tmp_path, fields, words):
    if not words:
        settings(tmp_path, **fields).check()
        return
    with pytest.raises(ValueError) as info:
        settings(tmp_path, **fields).check()
    assert words in str(info.value) and "\n" not in str(info.value)
