"""Schemes that change the positions of a run: drawn by step and seed, tested as in the papers."""

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from experiments.running.configs.compare import CompareConfig
from pe_jax import position_schemes
from pe_jax.models.config import ModelConfig
from pe_jax.models.generate import generate
from pe_jax.training.config import Config, EvalConfig
from pe_jax.training.evaluate import Evaluator
from tests import tiny
from tests.tiny import L
from tests.trainers import loss_at, steps, trainer

IDS = np.repeat(np.int32([[0, 1, 1], [2, 5, 0]]), 4, axis=1)  # runs of 4 and 8; 4, 4, 4
TOKENS = np.int32([[3, 9, 3, 1, 1, 9, 9, 2, 2, 2, 2, 2]] * 2)


def drawn(spec: str, key: int = 0, testing: bool = False):
    scheme = position_schemes.parse(spec)
    found = (scheme.test_positions if testing else scheme.training_positions)(
        jax.random.key(key), TOKENS, IDS
    )
    return None if found is None else np.asarray(found)


def runs(places):
    """The positions of each segment."""
    return [places[0, :4], places[0, 4:], places[1, :4], places[1, 4:8], places[1, 8:]]


def test_contiguous_positions_take_the_fast_path():
    assert drawn("contiguous") is drawn("contiguous", testing=True) is None


def test_randomized_positions_rise_in_each_segment_in_training_and_in_tests():
    for testing in (False, True):
        places = drawn("randomized(maximum=30)", testing=testing)
        assert all((np.diff(run) > 0).all() for run in runs(places))
        assert places.min() >= 0 and places.max() < 30 and places.shape == IDS.shape
        assert not np.array_equal(*places)  # rows are drawn apart
        assert not np.array_equal(places, drawn("randomized(maximum=30)", 1, testing))


def test_pose_skips_ahead_in_each_segment_in_training_alone():
    places = drawn("pose(maximum=1000, chunks=3)")
    for run in runs(places):
        assert run[0] == 0 and (np.diff(run) >= 1).all() and (np.diff(run) > 1).sum() <= 2
    assert 12 < places.max() < 1000 and not np.array_equal(*places)
    assert drawn("pose(maximum=1000)", testing=True) is None
    same = drawn("pose(maximum=12)")  # of the row: documents that are shorter still skip
    assert same.max() < 12 and not np.array_equal(places, drawn("pose(maximum=1000, chunks=3)", 1))


def test_random_floats_rise_in_each_segment_and_tests_space_them_evenly():
    spec = "random_floats(trained_length=6, maximum=30)"
    places = drawn(spec)
    assert all((np.diff(run) > 0).all() for run in runs(places)) and places.dtype == np.float32
    assert places.min() >= 0 and places.max() < 30 and not np.array_equal(places, drawn(spec, 1))
    assert not np.array_equal(*places) and (places % 1 > 0).all()
    tested = drawn(spec, testing=True)  # documents of 4 are shorter than the trained 6, 8 are not
    for run in runs(tested):
        want = (2 * np.arange(len(run)) + 1) / (2 * max(6, len(run))) * 30
        np.testing.assert_allclose(run, want, rtol=1e-6)


def test_shape_moves_whole_rows_and_cape_every_token_but_in_training_alone():
    for run in runs(drawn("shape(maximum=1000)")):
        np.testing.assert_array_equal(run - run[0], np.arange(len(run)))
    shifts = drawn("shape(maximum=1000)")[:, [0, 4]]
    np.testing.assert_array_equal(shifts[:, 0], shifts[:, 1])
    assert len(np.unique(shifts)) == 2 and shifts.max() <= 1000
    for run in runs(drawn("cape(global_shift=0, scaling=1)")):
        assert run.dtype == np.float32 and np.abs(run - np.arange(len(run))).max() <= 0.5
        assert np.ptp(run - np.arange(len(run))) > 0.01
    assert drawn("shape", testing=True) is drawn("cape", testing=True) is None


def test_bilevel_positions_come_from_the_tokens():
    for testing in (False, True):
        places = drawn("bilevel(separators=[9], longest=4)", testing=testing)
        assert places[0].T.tolist() == [
            [0, 0, 1, 1, 0, 0, 1, 2, 2, 2, 2, 2],
            [0, 1, 0, 1, 0, 1, 0, 0, 1, 2, 3, 3],
        ]


@pytest.mark.parametrize(
    "spec, training, testing, beyond",
    [
        ("contiguous", 12, 12, 50),
        ("randomized(maximum=40)", 40, 40, None),
        ("random_floats(maximum=40.5)", 41, 41, 41),
        ("pose(maximum=40)", 40, 12, 50),
        ("shape(maximum=9)", 21, 12, 50),
        ("cape", 17, 12, 50),  # (11 + 5 + 0.5)·1.03 is the farthest
        ("bilevel", 12, 12, 50),
        ("bilevel(longest=7)", 7, 7, 7),
    ],
)
def test_how_many_positions_there_are(spec, training, testing, beyond):
    scheme = position_schemes.parse(spec)
    found = scheme.bound(12), scheme.bound(12, testing=True), scheme.bound(50, testing=True)
    assert found == (training, testing, beyond)


def test_positions_are_drawn_anew_at_every_step_and_for_every_seed():
    one = trainer("rope", positions="randomized(maximum=40)")
    a, b, c, again = (loss_at(one, *at) for at in ((0, 0), (1, 0), (0, 1), (0, 0)))
    assert len({a, b, c}) == 3 and again == a


def test_nope_looks_at_no_position_and_keeps_the_fast_path():
    for spec in ("cape", "bilevel", "randomized(maximum=40)"):
        scheme = position_schemes.choose(spec, tiny.config("nope").pattern)
        assert scheme == position_schemes.Contiguous()


@pytest.mark.parametrize("relative", ["rope", "alibi"])
def test_bipe_trains_on_the_pieces_of_the_text(relative):
    one = trainer(f"bipe(length={L}, relative='{relative}')", positions="bilevel(separators=(3,))")
    batch = tiny.batch()
    (found,) = steps(one, 1, batch)[1]
    read, ids = batch["tokens"][:, :-1], batch["segments"][:, :-1]
    places = one.position_scheme.training_positions(jax.random.key(0), read, ids)
    model = one.model(tiny.like(one.shapes))
    logits = np.asarray(jax.jit(lambda: model(read, positions=places, segments=ids))())
    own = np.take_along_axis(logits, batch["tokens"][:, 1:, None], -1)[..., 0]
    weights = batch["weights"][:, 1:]
    want = ((logsumexp(logits, axis=-1) - own) * weights).sum() / weights.sum()
    np.testing.assert_allclose(found[0], want, rtol=1e-5)
    model.check_finite(read, positions=places, segments=ids)
    with pytest.raises(ValueError, match="BiPE has 2 axes: pass positions"):
        generate(model, read[:, :3], 2, temperature=0)


def test_tests_draw_where_the_paper_does_and_have_no_number_beyond_the_maximum():
    config = EvalConfig(lengths=(4, L, 4 * L), stride=4, windows=2, batch_tokens=4 * L)
    text = tiny.tokens(2, 8 * L + 1)
    found = {}
    floats = f"random_floats(trained_length={L}, maximum={L})"
    for spec in ("contiguous", "randomized(maximum=20)", floats):
        one = Evaluator(trainer("rope", positions=spec), config)
        found[spec] = one.by_length(tiny.like(one.trainer.shapes), text)["losses"]["sliding"]
    plain, randomized, floats = found.values()
    assert np.isfinite(floats[str(4 * L)]).all()
    np.testing.assert_allclose(floats[str(L)], plain[str(L)], rtol=1e-5)  # half a token farther
    assert floats[str(4 * L)] != plain[str(4 * L)]
    assert randomized[str(4 * L)] is None and randomized["4"] != plain["4"]
    assert np.isfinite(randomized["4"]).all() and np.isfinite(plain[str(4 * L)]).all()


@pytest.mark.parametrize(
    "spec, words",
    [
        ("", ("positions=''",)),
        ("shap", ("'shap' is unknown", "did you mean 'shape'?")),
        ("shape(max=3)", ("no field 'max'", "did you mean 'maximum'?")),
        ("contiguous(maximum=3)", ("no field 'maximum'", "it has none")),
        ("shape(500)", ("write name, or name(field=value)",)),
        ("shape(maximum=f())", ("write name, or name(field=value)",)),
        ("shape+cape", ("write name, or name(field=value)",)),
        ("shape(maximum=-1)", ("maximum=-1", "at least 0")),
        ("randomized(maximum=0)", ("maximum=0", "at least 1")),
        ("random_floats(maximum=0)", ("maximum=0", "above 0")),
        ("random_floats(trained_length=0)", ("trained_length=0", "at least 1")),
        ("randomized(maximum=63)", ("maximum must be at least length=64",)),
        ("pose(maximum=63)", ("maximum must be at least length=64",)),
        ("pose(chunks=1)", ("chunks=1", "at least 2")),
        ("random_floats", ("trained_length=512", "at most length=64")),
        ("cape(scaling=0.5)", ("scaling=0.5", "at least 1")),
        ("cape(local_shift='a')", ("local_shift='a'", "at least 0")),
        ("bilevel(separators=())", ("separators=()", "token ids")),
        ("bilevel(longest=0)", ("longest=0", "at least 1")),
        ("bilevel", ("gives positions of 2 axes, RoPE takes 1", "configs/images.py")),
    ],
)
def test_a_bad_scheme_is_refused_with_its_fix(spec, words):
    config = Config(positions=spec)
    with pytest.raises(ValueError) as info:
        config.check()
    assert "\n" not in str(info.value) and str(info.value).startswith("positions=")
    assert all(word in str(info.value) for word in words), str(info.value)


@pytest.mark.parametrize(
    "spec, encoding, words",
    [
        ("cape", "t5", ("float32, T5 takes integers",)),
        ("cape", "rope,nope", ("float32, Encoding takes integers",)),
        ("contiguous", "liere", ("LieRE takes 2", "pass LieRE(axes=1)")),
        ("contiguous", "bipe", ("of 1 axes, BiPE takes 2", "bilevel(separators=…)")),
        ("randomized", "rope+bipe", ("axes=[1, 2]",)),
    ],
)
def test_an_encoding_that_cannot_take_the_positions_is_refused(spec, encoding, words):
    config = Config(positions=spec, model=ModelConfig(encoding=encoding))
    compared = CompareConfig(positions=spec, encodings=("nope", encoding))
    for one in (config, compared):
        with pytest.raises(ValueError) as info:
            one.check()
        assert all(word in str(info.value) for word in words), str(info.value)


def test_what_fits_is_taken():
    for spec, encoding in (("cape", "sinusoidal+rope"), ("bilevel(separators=[1])", "bipe")):
        Config(positions=spec, model=ModelConfig(encoding=encoding)).check()
    CompareConfig(positions="shape(maximum=64)", encodings=("t5", "nope")).check()
    CompareConfig(positions="bilevel", encodings=("bipe", "nope")).check()
