"""One contiguous token at a time: what a cache holds, what a step reads, what it gives.

S capacity, N tokens, of which the horizons of `util.SMALL` leave most far away.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import Claims, Encoding, abstract_terms
from pe_jax.encodings.terms import (
    ChannelDecay,
    DistanceBias,
    DistanceTerm,
    KeyOffset,
    PairBias,
    PathProduct,
    RelativeQueries,
    RelativeState,
    Rotation,
    RowSum,
    Term,
    TokenBias,
    TokenProduct,
    select,
)
from pe_jax.engines.decoding import cache
from tests import util
from tests.util import DIMS, B, E, H, K, assert_close

S, N = 48, 40
CAUSAL = [c for c in util.CASES if c.causal and c.encoding.claims.axes == 1]
MIXED = [  # no horizon for the whole; two biases; all at once
    util.Case(spec, pe_jax.encodings.parse(spec)[0])
    for spec in ("shaw(clip=3)+alibi", "t5+alibi", "deberta(buckets=None,max_distance=4)+shaw+rope")
]
each = pytest.mark.parametrize("case", CAUSAL + MIXED, ids=str)


def named(*names):
    """One case of each scheme, as a parameter."""
    found = [next(c for c in CAUSAL if c.name.partition("(")[0] == name) for name in names]
    return pytest.mark.parametrize("case", found, ids=str)


def terms(case, *kinds):
    """The terms of these kinds, with shapes for arrays."""
    return select(abstract_terms(case.encoding, DIMS), *kinds)


def near(case) -> int:
    """How many distances differ, as the terms declare it."""
    horizons = [term.horizon for term in terms(case, DistanceTerm)]
    return S if None in horizons else min(S, 1 + max((high for _, high in horizons), default=0))


def past(case, dtype=jnp.float32, batch=B):
    return cache.empty(case.encoding, batch, S, DIMS, dtype, util.random_params(case.encoding))


def extend(case, past, qkv, positions=None, **masked):
    params = util.random_params(case.encoding)
    shared = {"encoding": case.encoding, "params": params, "dims": DIMS, **masked}
    shared["embedded"] = True
    return cache.extend(past, *qkv, positions, x=util.flat(qkv[0]), **shared)


def decode(case, qkv, past, **masked):
    """Every token by itself."""

    def step(past, token):
        out, past = extend(case, past, [x[:, None] for x in token], **masked)
        return past, out[:, 0]

    def run(past, qkv):
        rows = [jnp.moveaxis(jnp.asarray(x), 1, 0) for x in qkv]
        return jnp.moveaxis(jax.lax.scan(step, past, rows)[1], 0, 1)

    return util.jit(run)(past, qkv)


@functools.cache
def extender(case):
    """`extend` without options, compiled."""
    return util.jit(lambda past, qkv: extend(case, past, qkv))


@functools.cache
def dense(case, **options):
    """Whole rows at once, compiled: (qkv, arrays) → output."""
    options |= {"dims": DIMS, "encoding": case.encoding, "embedded": True}
    options |= {"params": util.random_params(case.encoding), "implementation": "dense"}
    attend = functools.partial(pe_jax.attention, **options)
    return util.jit(lambda qkv, arrays: attend(*qkv, x=util.flat(qkv[0]), **arrays))


def whole(case, qkv, mask=None, q_segments=None, **options):
    if mask is not None:
        return dense.__wrapped__(case, mask=mask, **options)(qkv, {})
    return dense(case, **options)(qkv, {} if q_segments is None else {"q_segments": q_segments})


@each
def test_a_cache_holds_what_the_terms_need(case):
    enc, empty = case.encoding, jax.eval_shape(lambda: past(case))
    queries, n = bool(terms(case, RelativeQueries)), near(case)
    rotations = terms(case, Rotation)
    assert empty.v.shape == (B, K, S, E)
    twice = any(name in str(case) for name in ("pope", "rerope", "self_extend"))
    assert empty.k.shape == (B, K, S, (1 + twice) * E)
    assert (empty.k_raw is not None) == (queries and any(r.k for r in rotations))
    assert (empty.beyond is not None) == (queries and n < S)
    assert empty.beyond is None or empty.beyond.shape == (B, H, S)
    for term, state, table in zip(terms(case, Term), empty.states, empty.tables, strict=True):
        if isinstance(term, PathProduct):
            keys, maps, length = state
            assert keys.shape == (B, H, S, E) and length.shape == (B,)
            assert maps.shape == (B, H, S, 2 * E) and keys.dtype == maps.dtype == jnp.float32
        elif isinstance(term, TokenBias | ChannelDecay):
            assert state.shape == (B, H, S, term.state.width) and state.dtype == jnp.float32
        elif isinstance(term, Rotation) and term.state and term.state.after:  # the last: it goes on
            assert state.shape == (B, H, 1, term.state.width) and state.dtype == jnp.float32
        elif isinstance(term, KeyOffset):
            assert state.shape == (B, K, 1, E) and state.dtype == jnp.float32
        elif isinstance(term, TokenProduct | RowSum) and term.state:  # the half for queries
            assert state.shape == (B, H, S, term.state.width // 2) and state.dtype == jnp.float32
        else:
            assert state is None
        assert (table is not None) == isinstance(term, DistanceTerm)
        if table is not None:
            assert table.dtype == jnp.float32 and table.shape[:2] in ((B, 1), (B, H))
            width = (E,)
            if isinstance(term, DistanceBias | RelativeState):
                width = (term.state.width,) if term.state else ()
            assert table.shape[2:] == (n, *width)
    assert jax.eval_shape(lambda: cache.empty(enc, B, S, DIMS)).tables is None
    assert all(x.shape[0] == B for x in jax.tree.leaves(empty))


# need whole rows of scores, a bias of each row's own position, or a factor for each channel
WHOLE = (PathProduct, PairBias, ChannelDecay)


@pytest.mark.parametrize("case", [c for c in CAUSAL if not terms(c, *WHOLE)], ids=str)
def test_a_step_makes_nothing_as_large_as_the_keys(case):
    token = [x[:, :1] for x in util.inputs(N)]
    empty = jax.eval_shape(lambda: past(case))
    program = str(jax.make_jaxpr(lambda past: extend(case, past, token))(empty))
    made = re.findall(r":f32\[([\d,]+)\] = (\w+)", program)
    assert (f"{B},{H},1,{S}", "exp") in made
    large = {name for shape, name in made if np.prod(eval(f"[{shape}]")) >= B * K * S * E}
    large -= {"cond", "while", "jit"}  # what these hold counts
    assert large - {"slice", "squeeze"} == {"dynamic_update_slice"}  # a table's first row is cut


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about XLA for CPU")
@named("nope", "shaw", "deberta", "deberta+rope")
def test_a_step_copies_no_cache(case):
    """With a batch of one, XLA fuses each write with its readers, and copies the keys for that."""
    token, given = [x[:1, :1] for x in util.inputs(N)], past(case, batch=1)
    step = jax.jit(lambda c, token: extend(case, c, token), donate_argnums=0)
    text = step.lower(given, token).compile().as_text()
    shape = "[" + ",".join(map(str, given.k.shape)) + "]"
    assert shape in text
    assert not [line for line in text.splitlines() if " copy(" in line and shape in line]


@util.of_each_kind(CAUSAL + MIXED)
def test_decoding_equals_attention_far_beyond_the_horizon(case):
    qkv = util.inputs(N)
    assert_close(decode(case, qkv, past(case)), whole(case, qkv))


@named("deberta", "rerope")
@pytest.mark.parametrize("masked", ({"window": 6}, {"window": 6, "sinks": 3}), ids=str)
def test_so_it_does_under_a_window(case, masked):
    qkv = util.inputs(N)
    assert_close(decode(case, qkv, past(case), **masked), whole(case, qkv, **masked))


@named("nope", "rope", "t5", "alibi")
def test_a_window_costs_its_width_and_the_sinks_theirs(case):
    token, given = [x[:, :1] for x in util.inputs(N)], past(case)
    step = jax.make_jaxpr(lambda past: extend(case, past, token, window=8, sinks=2))
    width = 2 + max(8, near(case))
    assert width < S and f"f32[{B},{H},1,{width}] = exp" in str(step(given))


@named("t5", "deberta")
def test_bfloat16_is_near_float32(case):
    half = [jnp.asarray(x, jnp.bfloat16) for x in util.inputs(N)]
    out = decode(case, half, past(case, jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    assert_close(out, whole(case, [x.astype(jnp.float32) for x in half]), 0.05)


@named("deberta", "deberta+rope")
def test_parts_explicit_positions_and_single_tokens_mix(case):
    def run(past, qkv):
        at, outs = 0, []
        for count, explicit in ((1, 0), (5, 0), (1, 1), (1, 0), (20, 1), (1, 0), (11, 0)):
            part = slice(at, at := at + count)
            places = util.contiguous(1, N)[:, part] if explicit else None
            out, past = extend(case, past, [x[:, part] for x in qkv], places)
            outs.append(out)
        return jnp.concatenate(outs, axis=1)

    qkv = util.inputs(N)
    assert_close(util.jit(run)(past(case), qkv), whole(case, qkv))


class Grid(Encoding):
    claims = Claims(axes=2)


def test_what_is_not_contiguous_or_does_not_fit_is_refused_or_nan():
    case, token = CAUSAL[0], [x[:, :1] for x in util.inputs(N)]
    _, held = extend(case, past(case), token, np.full((1, 1), 7))
    with pytest.raises(ValueError, match="positions are not 0, 1, 2, …: pass positions"):
        extend(case, held, token)
    grid = util.Case("grid", Grid())
    with pytest.raises(ValueError, match="Grid has 2 axes: pass positions"):
        extend(grid, past(grid), token)
    places = jnp.broadcast_to(jnp.arange(S), (B, S))
    full = dataclasses.replace(past(case), length=jnp.full(B, S), positions=places)
    with pytest.raises(ValueError, match="48 of 48 tokens and 1 more do not fit"):
        extend(case, full, token)
    assert np.isnan(util.jit(lambda past: extend(case, past, token)[0])(full)).all()


FAR = 2**24 + 1  # float32 holds no position from here on
ANY = "alibi alibi_2d kerple sandwich cpb transformer_xl fire".split()


def in_parts(encoding, params, places):
    """Tokens at `places` [T] on every axis, half at once, from an eager cache of twice as many."""
    axes, (q, k, v) = encoding.claims.axes, util.inputs(len(places))
    places = np.stack([places] * axes, -1) if axes > 1 else places
    half, past, outs = len(places) // 2, cache.empty(encoding, B, 2 * len(places), DIMS), []
    given = {"encoding": encoding, "params": params}
    for at in (slice(half), slice(half, None)):
        new = (x[:, at] for x in (q, k, v))
        out, past = cache.extend(past, *new, places[None, at], dims=DIMS, **given)
        outs.append(out)
    whole = util.jit(lambda *qkv: pe_jax.attention(*qkv, q_positions=places, causal=True, **given))(
        q, k, v
    )
    return np.concatenate(outs, 1), whole, past


@pytest.mark.parametrize("name", ANY)
def test_integers_beyond_float32_stay_integers_in_a_cache(name):
    """Distances of late tokens are exact, and no check sees the rows that are not filled."""
    encoding = pe_jax.make(name)
    out, whole, past = in_parts(encoding, util.random_params(encoding), FAR + np.arange(8))
    assert past.positions.dtype == jnp.int32
    np.testing.assert_allclose(out, whole, atol=1e-5)
    if name == "alibi":  # by hand, at distances of which float32 keeps none that is odd
        q, k, v = (x[0].astype(np.float64) for x in util.inputs(8))
        k, v = (np.repeat(x, 2, axis=1) for x in (k, v))
        scores = np.einsum("the,she->hts", q, k) / np.sqrt(q.shape[-1])
        away = np.subtract.outer(np.arange(8), np.arange(8))
        scores -= 2.0 ** -np.arange(2, 9, 2)[:, None, None] * away
        scores = np.exp(np.where(away < 0, -np.inf, scores))
        want = np.einsum("hts,she->the", scores / scores.sum(-1, keepdims=True), v)
        np.testing.assert_allclose(out[0], want, atol=1e-5)


def test_a_row_that_is_not_filled_is_outside_no_window():
    encoding = pe_jax.make("swin", height=8, width=8)
    out, whole, _ = in_parts(encoding, util.random_params(encoding), 40 + np.arange(8))
    np.testing.assert_allclose(out, whole, atol=1e-5)


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_a_cache_takes_floats_from_the_first_ones_on(name):
    encoding = pe_jax.make(name)
    places = np.float32(np.arange(8) + 0.25)
    out, whole, past = in_parts(encoding, util.random_params(encoding), places)
    assert past.positions.dtype == jnp.float32
    np.testing.assert_allclose(out, whole, atol=1e-5)
    new = [x[:, :1] for x in util.inputs(8)]
    given = {"encoding": encoding, "params": util.random_params(encoding), "dims": DIMS}
    with pytest.raises(ValueError, match="is not exact in float32"):
        cache.extend(past, *new, np.array([[FAR]]), **given)


def test_sizes_and_no_parameters_are_inferred_as_attention_infers_them():
    qkv, held = util.inputs(6), cache.empty(pe_jax.make("rope"), B, 8, DIMS)
    out, _ = cache.extend(held, *qkv, encoding="rope")
    assert_close(out, pe_jax.attention(*qkv, encoding="rope"), 1e-6)
    with pytest.raises(ValueError, match=r"T5 needs parameters|params=None"):
        cache.extend(cache.empty(pe_jax.make("t5"), B, 8, DIMS), *qkv, encoding="t5")
    with pytest.raises(ValueError, match=r"cache\.k=.* RoPE needs"):
        cache.extend(held, *[x[..., :4] for x in qkv], encoding="rope")


@pytest.mark.parametrize("other", ["rope(base=5e5)", "alibi", "xpos", "nope"])
def test_a_cache_of_another_encoding_is_refused_though_it_is_laid_out_alike(other):
    held = cache.empty(pe_jax.make("rope"), B, 8, DIMS)
    with pytest.raises(ValueError, match=r"cache=.RoPE\(.*: made for another encoding than \w+"):
        cache.extend(held, *util.inputs(2), encoding=other, dims=DIMS)


def test_a_cache_is_made_for_an_encoding_at_any_length():
    encoding = pe_jax.parse("rope(scaling=dynamic_ntk(factor=2.0,original_length=4))")[0]
    held = cache.empty(encoding, B, 8, DIMS)
    for length in (6, 8):
        out, _ = cache.extend(held, *util.inputs(2), encoding=encoding.at_length(length))
        assert np.isfinite(out).all()
