"""Rows of a cache that differ, and what becomes of it: padding, masks, drafts taken back, beams.

What is right is each row alone, by the dense engine.
"""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import masks
from pe_jax.engines.decoding import cache
from tests import util
from tests.contract.laws import each
from tests.test_decode import CAUSAL, S, extend, extender, named, past, whole
from tests.util import DIMS, B, H, assert_close

LENGTHS, T, NEW = (4, 9), 9, 3  # tokens of each row's prompt, its columns, tokens that follow
SIDES = {  # where the tokens of each row are
    "left": [[*range(T - n, T)] for n in LENGTHS],
    "right": [[0, 1, 5, 6], [*range(T)]],  # and between them
}
# One scheme for each kind of term and of state; the others are slow.
OTHERS = ("deberta+rope", "grape_ap", "path", "stick_breaking", "dape", "sandwich")
OTHERS += ("inkling(extent=6", "sink(from_input")
KINDS = util.first_of_kinds(CAUSAL) | {c for c in CAUSAL if c.name.startswith(OTHERS)}
of_each_kind = each(CAUSAL, quick=KINDS)
# What is done to arrays of a cache, whatever they mean: a scheme for each form of them.
FORMS = ("nope", "key_offset", "t5(num_buckets=6", "deberta(buckets=None", "fox", "selective_rope")
FORMS += ("path",)
of_each_form = each(CAUSAL, quick={c for c in CAUSAL if c.name.startswith(FORMS)})


def padded(side: str) -> tuple[list, np.ndarray, list]:
    """A batch whose padding is NaN, its segments [B, T], and each row's columns of tokens."""
    segments = np.full((B, T), -1, np.int32)
    columns = [[*own, *range(T, T + NEW)] for own in SIDES[side]]
    real = np.zeros((B, T + NEW), bool)
    for row, own in enumerate(columns):
        real[row, own] = True
    segments[real[:, :T]] = 3
    batch = [np.where(real[:, :, None, None], x, np.nan) for x in util.inputs(T + NEW)]
    return batch, segments, columns


@functools.cache
def decoder(case, **options):
    """(batch, segments) → outputs: the prompt at once, then token by token."""

    def run(batch, segments):
        prompt, rest = ([x[:, part] for x in batch] for part in (slice(T), slice(T, None)))
        out, held = extend(case, past(case), prompt, segments=segments, **options)

        def step(held, token):
            out, held = extend(case, held, [x[:, None] for x in token], **options)
            return held, out[:, 0]

        outs = jax.lax.scan(step, held, [jnp.moveaxis(x, 1, 0) for x in rest])[1]
        return jnp.concatenate([out, jnp.moveaxis(outs, 0, 1)], 1)

    return util.jit(run)


def check_rows(case, **options):
    """Asserts that rows with padding on either side are decoded as each would be alone."""
    for side in SIDES:
        batch, segments, columns = padded(side)
        outputs = np.asarray(decoder(case, **options)(batch, segments))
        alone = [np.zeros_like(x) for x in batch]  # the tokens of each row; none sees what follows
        for row, own in enumerate(columns):
            for x, tokens in zip(batch, alone, strict=True):
                tokens[row, : len(own)] = x[row, own]
        expected = whole(case, alone, **options)
        for row, own in enumerate(columns):
            assert_close(outputs[row, own], expected[row, : len(own)], 3e-5)


@of_each_kind
def test_rows_of_unequal_length_are_each_alone(case):
    check_rows(case)


@named("nope", "alibi", "fox")
def test_windows_and_sinks_count_tokens_not_padding(case):
    check_rows(case, window=3, sinks=1)


@named("rope", "fox", "t5")
def test_documents_in_one_row_are_each_alone(case):
    qkv, ids = util.inputs(12), np.tile(np.repeat([0, 1, 1, 2], [5, 2, 2, 3]), (B, 1))
    outputs = in_parts(case, qkv, (4, 8, 12), lambda part: {"segments": ids[:, part]})
    assert_close(outputs, whole(case, qkv, q_segments=ids), 3e-5)


def in_parts(case, qkv, ends, options):
    """Outputs of tokens that come in several parts, each with its options; one program."""

    def run(qkv):
        held, outs = past(case), []
        for part in map(slice, (0, *ends), ends):
            out, held = extend(case, held, [x[:, part] for x in qkv], **options(part))
            outs.append(out)
        return jnp.concatenate(outs, 1)

    return util.jit(run)(qkv)


@pytest.mark.parametrize("name", ["prefix", "tree", "booleans"])
@named("nope", "t5", "shaw")
def test_masks_are_those_of_attention(case, name):
    parents, index = np.array([-1, 0, 1, 2, 3, 4, 4, 5, 6]), np.arange(9)
    seen = (index < 5) | (index <= index[:, None])
    mask = {"prefix": masks.prefix(5), "tree": masks.tree(parents), "booleans": seen}[name]
    options, qkv = {"causal": False} if name == "booleans" else {}, util.inputs(9)

    def options_of(part):  # booleans are of the rows of the cache
        rows = np.pad(seen[part], ((0, 0), (0, S - 9)))
        return options | {"mask": rows if name == "booleans" else mask}

    outputs = in_parts(case, qkv, (5, 8, 9), options_of)
    assert_close(outputs, whole(case, qkv, mask=mask, **options), 2e-5)


@named("nope", "rope", "shaw")
def test_a_prefix_sees_both_ways(case):
    """Rows of the cache that no token has filled are hidden, with a window's too."""
    qkv = util.inputs(9)
    for window in (None, 4):
        options = {"causal": False, "window": window}

        def run(qkv, window=window, options=options):
            held = past(case) if window is None else windowed(case, window)
            out, held = extend(case, held, [x[:, :6] for x in qkv], **options)
            return out, extend(case, held, [x[:, 6:] for x in qkv], **options)[0]

        out, more = util.jit(run)(qkv)
        assert_close(out, whole(case, [x[:, :6] for x in qkv], **options), 2e-5)
        assert_close(more, whole(case, qkv, **options)[:, 6:], 2e-5)


def windowed(case, window, sinks=0):
    params = util.random_params(case.encoding)
    return cache.empty(case.encoding, B, 32, DIMS, params=params, window=window, sinks=sinks)


def test_segments_and_a_window_that_forgets():
    case = CAUSAL[0]
    with pytest.raises(ValueError, match="without window="):
        extend(case, windowed(case, 4), util.inputs(3), segments=np.zeros((B, 3), int), window=4)
    with pytest.raises(ValueError, match="segments has shape"):
        extend(case, past(case), util.inputs(3), segments=np.zeros((B, 4), int))


@of_each_form
def test_drafts_that_are_taken_back_leave_nothing(case):
    qkv, step = util.inputs(16), extender(case)
    other = [x[:, ::-1] for x in qkv]
    held = step(past(case), [x[:, :8] for x in qkv])[1]
    drafts = step(held, [x[:, 8:] for x in qkv])[1]
    if any(x.ndim > 1 and x.shape[2] == 1 for x in jax.tree.leaves(held.states)):
        with pytest.raises(ValueError, match="running sum"):
            cache.truncate(drafts, 9)
        return
    back = util.jit(lambda drafts: cache.truncate(drafts, drafts.start - 7))(drafts)
    want = step(step(held, [x[:, 8:9] for x in qkv])[1], [x[:, 9:10] for x in other])[0]
    assert_close(step(back, [x[:, 9:10] for x in other])[0], want, 1e-6)


@of_each_form
def test_rows_take_back_as_many_drafts_as_each_must(case):
    """Each row then goes on as one that never had them; a row of none begins anew."""
    qkv, step, counts = util.inputs(16), extender(case), (8, 3) if B == 2 else ()
    drafts = step(past(case), [x[:, :10] for x in qkv])[1]
    if any(x.ndim > 1 and x.shape[2] == 1 for x in jax.tree.leaves(drafts.states)):
        with pytest.raises(ValueError, match="running sum"):
            cache.truncate(drafts, counts)
        return
    for kept in (counts, (5, 0)):
        known = cache.truncate(drafts, kept)
        unknown = util.jit(cache.truncate)(drafts, jnp.asarray(kept, jnp.int32))
        outputs = [step(held, [x[:, 10:12] for x in qkv])[0] for held in (known, unknown)]
        for row, count in enumerate(kept):
            own = [jnp.concatenate([x[:, :count], x[:, 10:12]], 1) for x in qkv]
            want = whole(case, own)[row, count:]
            for got in outputs:
                assert_close(got[row], want, 3e-5)


def test_rows_of_one_cache_have_one_length():
    held = extender(CAUSAL[0])(past(CAUSAL[0]), util.inputs(6))[1]
    uneven = dataclasses.replace(held, length=jnp.asarray([6, 5], jnp.int32))
    one = [x[:, :1] for x in util.inputs(6)]
    with pytest.raises(ValueError, match=r"cache\.length is \[6, 5\], not one length: .*truncate"):
        extend(CAUSAL[0], uneven, one)
    out = np.asarray(extender(CAUSAL[0])(uneven, one)[0])
    assert np.isnan(out[1]).all() and not np.isnan(out[0]).any()


@of_each_form
def test_a_cache_is_mapped_over_its_rows(case):
    """As `jax.vmap` over requests and `nn.scan` with the cache on an axis divide one."""
    qkv, step = util.inputs(9), extender(case)
    held = step(past(case), [x[:, :8] for x in qkv])[1]
    row = lambda tree: jax.tree.map(lambda x: x[None], tree)  # noqa: E731
    alone = util.jit(jax.vmap(lambda held, qkv: extend(case, row(held), row(qkv))))
    want = step(held, [x[:, 8:] for x in qkv])
    got = alone(held, [x[:, 8:] for x in qkv])
    got = jax.tree.map(lambda x: x[:, 0], got)
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), got, want)


def test_a_step_may_donate_a_copy():
    case = next(c for c in CAUSAL if c.name.startswith("t5"))  # which has a table
    donating = jax.jit(functools.partial(extend, case), donate_argnums=0)
    held = extender(case)(past(case), util.inputs(6))[1]
    more, count = [x[:, :1] for x in util.inputs(6)], jnp.asarray(4, jnp.int32)
    for _ in range(2):  # requests that share a prefix
        donating(cache.take(held, [0, 1]), more)
    assert (held.length == 6).all()
    donating(cache.truncate(held, count), more)
    assert int(count) == 4


def test_a_decode_step_is_exported():
    (path,) = [c for c in CAUSAL if c.name == "path"]
    for case, options in ((CAUSAL[0], {}), (CAUSAL[0], {"window": 8}), (path, {})):
        start = windowed(case, 8) if options else past(case)
        step = jax.jit(functools.partial(extend, case, **options))
        held, more = step(start, util.inputs(6))[1], [x[:, :1] for x in util.inputs(6)]
        saved = jax.export.export(step)(held, more).serialize()
        assert_close(jax.export.deserialize(saved).call(held, more)[0], step(held, more)[0], 1e-6)


@pytest.mark.parametrize(
    "scheme, name", [("fox", "states"), ("deberta(buckets=None", "beyond"), ("path", "states")]
)
def test_sums_and_tables_of_a_cache_stay_float32(scheme, name):
    """A policy of half precision over all of its arrays put FoX's outputs off by 0.9."""
    case = next(c for c in CAUSAL if c.name.startswith(scheme))
    held = extender(case)(past(case), util.inputs(6))[1]
    half = lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x  # noqa: E731
    with pytest.raises(TypeError, match=rf"cache\.{name} has dtype bfloat16: running sums"):
        extend(case, jax.tree.map(half, held), util.inputs(1))


def test_what_cannot_be_taken_back():
    case = CAUSAL[0]
    held = extender(case)(past(case), util.inputs(6))[1]
    assert (cache.truncate(held, 0).length == 0).all()
    for length in (7, -1, 2.5):
        with pytest.raises((ValueError, TypeError), match="length"):
            cache.truncate(held, length)
    after = util.jit(lambda n: extend(case, cache.truncate(held, n), one)[0])
    one = [x[:, :1] for x in util.inputs(6)]
    for length in (0, 6, 7, -1):  # unknown there
        assert np.isnan(after(length)).all() == (length not in range(7))
    step = util.jit(lambda held, qkv: extend(case, held, qkv, window=8))
    few = step(windowed(case, 8), util.inputs(6))[1]
    other = [x[:, 4:5] for x in util.inputs(9)]
    first = step(windowed(case, 8), [x[:, :4] for x in util.inputs(6)])[1]
    assert_close(step(cache.truncate(few, 4), other)[0], step(first, other)[0], 1e-6)
    many = step(few, util.inputs(6))[1]
    assert (cache.truncate(many, 12).length == 12).all()
    for refused in (lambda: cache.truncate(many, 11), lambda: jax.jit(cache.truncate)(many, 11)):
        with pytest.raises(ValueError, match="written over"):
            refused()
    with pytest.raises(TypeError, match=r"cache\.empty"):
        cache.truncate(None, 3)  # pyright: ignore[reportArgumentType]


@of_each_form
def test_beams_take_rows(case):
    """Also more rows than there were; any other code's search takes rows of each array."""
    qkv, rows, step = util.inputs(9), np.asarray([1, 0, 1, 1]), extender(case)
    held = step(past(case), [x[:, :8] for x in qkv])[1]
    taken = cache.take(held, rows)
    assert taken.k.shape[0] == 4
    same = jax.tree.map(jnp.array_equal, taken, jax.tree.map(lambda x: x[rows], held))
    assert jax.tree.all(same) and H != B
    got = step(taken, [x[rows, 8:] for x in qkv])[0]
    assert_close(got, np.asarray(step(held, [x[:, 8:] for x in qkv])[0])[rows], 1e-6)


def test_beams_of_padded_rows():
    case = CAUSAL[0]
    batch, segments, _ = padded("left")
    step = util.jit(lambda held, qkv: extend(case, held, qkv, segments=segments))
    held = step(past(case), [x[:, :T] for x in batch])[1]
    taken = cache.take(held, [1, 0])
    assert taken.segments is not None
    np.testing.assert_array_equal(taken.segments[:, :T], segments[::-1])
    for rows in ([2], [-1], [0.5], [[0]]):
        with pytest.raises((ValueError, TypeError), match="rows"):
            cache.take(held, rows)


def test_a_cache_may_be_made_for_segments():
    """So that a loop carries one structure."""
    case = CAUSAL[0]
    made = cache.with_segments(past(case))
    assert cache.with_segments(made) is made
    batch, segments, _ = padded("left")
    extended = extend(case, made, [x[:, :T] for x in batch], segments=segments)[1]
    assert jax.tree.structure(extended) == jax.tree.structure(made)
