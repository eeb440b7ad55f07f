"""What models of other code bases pass: the same numbers, or an error where it could mean two."""

import functools

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import pe_jax
from pe_jax.encodings import rope
from pe_jax.engines import encoding_checks
from pe_jax.models import adapters
from tests.test_attention_options import DIMS, QKV, TILED, B, E, H, K, T
from tests.util import assert_close, jit, noise, random_params

T5 = pe_jax.make("t5")
NTK = pe_jax.parse("rope(scaling=dynamic_ntk(factor=2, original_length=4))")[0]


def flat(params):
    return {**params.shared, **params.layer}


def restored(params):
    """As a checkpoint holds it: tuples become mappings with the keys "0", "1", …."""
    return flax.serialization.to_state_dict(params)


def state(params):
    """The state of an NNX module that owns them."""
    module = nnx.Module()
    module.pe = nnx.data(jax.tree.map(nnx.Param, params))
    return nnx.state(module)["pe"]


FORMS = {
    "variables": lambda p: jax.tree.map(nnx.Param, p),
    "state": state,
    "frozen": lambda p: nn.FrozenDict(restored(p)),
    "sides": lambda p: pe_jax.Params(*map(nn.FrozenDict, p)),
    "restored": restored,
    "lists": lambda p: {side: list(x) for side, x in p._asdict().items()},
    "flat": flat,
    "one side": lambda p: {side: x for side, x in p._asdict().items() if jax.tree.leaves(x)},
}


OF_A_SUM = FORMS.keys() - {"flat", "sides"}  # names of two summands may be the same
CASES = [(spec, form) for spec in ("t5", "fox", "wavlm") for form in FORMS.keys() - {"lists"}]
CASES += [("t5+fox", form) for form in OF_A_SUM] + [("rope", "restored"), ("rope", "flat")]


@pytest.mark.parametrize("spec, form", sorted(CASES))
def test_parameters_come_in_any_tree_with_their_names(spec, form):
    encoding = pe_jax.parse(spec)[0]
    params = random_params(encoding, DIMS)
    got = encoding_checks.params(encoding, FORMS[form](params), DIMS)
    assert jax.tree.structure(got) == jax.tree.structure(params)
    assert_close(got, params, 0)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"tabel": jnp.zeros((H, 32))}, "params.shared has no table"),
        ({"layer": {"table": jnp.zeros((H, 32))}}, "params.shared has no table"),
        ({}, "params.shared has no table"),
        ({"table": nnx.Param(jnp.zeros((1, 32)))}, "table has shape"),
    ],
    ids=str,
)
def test_other_names_and_shapes_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        pe_jax.attention(*QKV, encoding=T5, params=given)


def test_variables_train_in_attention_and_serve_embed_and_a_cache():
    params = random_params(T5, DIMS)
    variables = jax.tree.map(nnx.Param, params)

    def total(params):
        return (pe_jax.attention(*QKV, encoding=T5, params=params) ** 2).sum()

    want = jit(jax.grad(total))(params)
    table = nnx.grad(lambda table: total({"table": table}))(variables.shared["table"])
    assert_close(jnp.asarray(table[...]), want.shared["table"])
    past = pe_jax.cache.empty(T5, B, T, DIMS, params=variables)
    out, _ = pe_jax.cache.extend(past, *QKV, encoding=T5, params=state(params), dims=DIMS)
    assert_close(out, pe_jax.attention(*QKV, encoding=T5, params=params))
    learned = pe_jax.make("learned", length=T)
    own, x = random_params(learned, DIMS), noise(B, T, DIMS.width)
    for form in ("variables", "state", "frozen", "flat"):
        got = learned.embed(FORMS[form](own), x, jnp.arange(T))
        assert_close(got, learned.embed(own, x, jnp.arange(T)), 0)


MASK = noise(B, 1, T, T) > -0.5


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_a_mask_of_zeros_and_ones_is_one_of_booleans(dtype):
    attend = functools.partial(pe_jax.attention, *QKV, encoding="rope")
    want = attend(mask=MASK)
    assert_close(attend(mask=MASK.astype(dtype)), want, 0)
    traced = jit(lambda mask: attend(mask=mask))
    assert_close(traced(MASK.astype(dtype)), want)
    bias = noise(1, H, 1, T)
    both = jit(lambda mask: attend(mask=mask, bias=bias))(MASK.astype(dtype))
    assert_close(both, attend(mask=MASK, bias=bias))


ADDITIVE = [np.where(MASK, 0, -1e9), np.zeros(MASK.shape), 2.0 * MASK]


@pytest.mark.parametrize("mask", ADDITIVE, ids=["-1e9", "zeros", "twos"])
def test_an_additive_mask_is_refused_or_gives_nan(mask):
    mask = mask.astype(np.float32)
    with pytest.raises(ValueError, match="mask holds .*: pass booleans, .*additive mask is a bias"):
        pe_jax.attention(*QKV, mask=mask)
    out = jit(lambda mask: pe_jax.attention(*QKV, mask=mask))(mask)
    assert np.isnan(out).all()

    @jit
    def extended(mask):
        past = pe_jax.cache.empty("nope", B, T, DIMS)
        options = {"encoding": "nope", "params": None, "dims": DIMS}
        return pe_jax.cache.extend(past, *QKV, mask=mask, **options)[0]

    assert np.isnan(extended(mask)).all()
    assert_close(extended(MASK.astype(np.float32)), pe_jax.attention(*QKV, mask=MASK))


@pytest.mark.parametrize(
    "spec, scale", [("t5", 1.0), ("t5", 0.3), ("deberta(buckets=4,max_distance=7)+rope", 0.3)]
)
def test_the_scale_of_a_call_replaces_that_of_the_encoding(spec, scale):
    """In each engine and traced; T5's bias is not multiplied."""
    encoding = pe_jax.parse(spec)[0]
    params = random_params(encoding, DIMS)
    attend = functools.partial(pe_jax.attention, *QKV, encoding=encoding, params=params)
    want = jit(lambda: attend(scale=scale, implementation="dense"))()
    assert_close(jit(lambda: attend(scale=scale, implementation=TILED))(), want)
    assert_close(jit(lambda scale: attend(scale=scale))(scale), want)
    past = pe_jax.cache.empty(encoding, B, T, DIMS, params=params)
    options = {"encoding": encoding, "params": params, "dims": DIMS, "scale": scale}
    for cut in (slice(0, T - 1), slice(T - 1, T)):
        out, past = pe_jax.cache.extend(past, *(x[:, cut] for x in QKV), **options)
    assert_close(out, want[:, -1:])
    if encoding == T5:
        at = np.arange(T)
        bias = pe_jax.bias(T5, at, at, params, dims=DIMS)
        assert_close(want, pe_jax.attention(*QKV, bias=bias, scale=scale))


def test_without_positions_in_the_scheme_lengths_may_differ():
    q, k, v = QKV[0], QKV[1][:, :7], QKV[2][:, :7]
    theirs = jax.nn.dot_product_attention(q, k, v)
    for spec in (None, "nope", "learned(length=4)"):  # its positions are in the input
        options = {"params": params_of(spec), "causal": False, "embedded": True}
        assert_close(pe_jax.attention(q, k, v, encoding=spec, **options), theirs)
        fn = adapters.attention_fn(spec, **options)
        repeat = functools.partial(jnp.repeat, repeats=H // K, axis=2)
        assert_close(fn(q, repeat(k), repeat(v)), theirs)
    packed = adapters.attention_fn("nope", causal=False, segments=np.zeros(7, int))
    with pytest.raises(ValueError, match="pass positions and q_positions"):
        packed(q, repeat(k), repeat(v))
    for options in ({"encoding": "rope"}, {"mask": pe_jax.masks.prefix(2)}):
        with pytest.raises(ValueError, match="pass q_positions and k_positions"):
            pe_jax.attention(q, k, v, causal=False, **options)
    with pytest.raises(ValueError, match="pass q_index"):
        pe_jax.attention(q, k, v)


def params_of(spec):
    return random_params(pe_jax.parse(spec or "nope")[0], DIMS)


def test_a_cap_of_zero_is_none():
    want = pe_jax.attention(*QKV)
    for zero in (0, 0.0, np.float32(0), jnp.zeros(())):
        assert_close(pe_jax.attention(*QKV, logit_cap=zero), want, 0)
    pe_jax.attention(*QKV, encoding="stick_breaking", logit_cap=0)  # which has no cap
    with pytest.raises(ValueError, match="logit_cap=False"):
        pe_jax.attention(*QKV, logit_cap=False)


XPOS, TUPE = pe_jax.make("xpos"), pe_jax.make("tupe", length=T)  # neither is defined there


@pytest.mark.parametrize(
    "encoding",
    [pe_jax.make("rope"), T5, NTK.at_length(T), XPOS, TUPE],
    ids=lambda e: type(e).__name__,
)
def test_padding_may_be_at_position_2_to_the_30(encoding):
    segments = np.where(np.arange(T) < T - 5, 0, -1) * np.ones((B, 1), int)
    places = np.where(segments < 0, 2**30, np.arange(T))
    params = random_params(encoding, DIMS)

    def attend(at, params=params, segments=segments):
        options = {"encoding": encoding, "params": params, "q_segments": segments}
        return pe_jax.attention(*QKV, q_positions=at, **options)

    want = attend(np.arange(T))
    assert_close(attend(places), want)
    both = jit(lambda at: jax.vjp(lambda params: attend(at, params), params))
    (out, pull), (_, known) = both(places), both(np.arange(T))
    assert_close(out, want)
    assert_close(pull(out), known(out))
    for wrong in (2**30 + 1, -(2**30)):
        with pytest.raises(ValueError, match="keep .position. below|at_length|outside"):
            attend(np.where(segments < 0, wrong, np.arange(T)))


def test_padding_is_embedded_and_rotated_unchecked():
    learned, at = pe_jax.make("learned", length=T), np.r_[: T - 1, 2**30]
    params, x = random_params(learned, DIMS), noise(B, T, DIMS.width)
    want = learned.embed(params, x, np.arange(T))[:, :-1]
    for embed in (learned.embed, jit(learned.embed)):
        got = embed(params, x, at)
        assert_close(got[:, :-1], want, 0)
        assert np.isfinite(got).all()
    places, theta = np.r_[: T - 1, 2**30], rope.frequencies(E)
    turned, want = (rope.rotate(QKV[0], at, theta) for at in (places, np.arange(T)))
    assert_close(turned[:, :-1], want[:, :-1], 0)
    assert np.isfinite(turned).all()
    with pytest.raises(ValueError, match="is not exact"):
        rope.rotate(QKV[0], places - 1, theta)


FOX = pe_jax.make("fox").terms(params_of("fox"), DIMS)


def test_heads_in_the_place_of_tokens_get_a_hint():
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in QKV)  # [B, H, T, E]
    hint = "are heads and tokens swapped"
    calls = [
        lambda: pe_jax.attention(q, k, v, encoding="rope"),
        lambda: pe_jax.attention(q, q, q, dims=DIMS),
        lambda: pe_jax.attention(q, q, q, terms=FOX, x=noise(B, T, DIMS.width)),
        lambda: pe_jax.attention(q, QKV[1], QKV[2]),
        lambda: pe_jax.attention(q, q, q, encoding="rope", q_positions=np.arange(T)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=hint):
            call()
    with pytest.raises(ValueError) as error:  # more tokens than heads
        pe_jax.attention(QKV[0], *(x[:, :7] for x in QKV[1:]), encoding="rope")
    assert hint not in str(error.value)
