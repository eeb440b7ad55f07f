"""Laws of `pe_jax.rotate`, `bias` and `decompose`: plain attention with them is `attention`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.rope import RoPE
from pe_jax.engines.mask import allowed
from tests import util
from tests.contract.laws import each
from tests.util import DIMS, B, H, K, T, assert_close, contiguous, flat

NONE = pe_jax.Params({}, {})


@dataclasses.dataclass(frozen=True)
class Shifted(RoPE):
    """RoPE of queries plus a learned vector; no scheme of the package has both and no more."""

    def init_layer(self, key, dims):
        return {"u": jnp.zeros((dims.heads, dims.head_dim))}

    def terms(self, params, dims):
        return (pe_jax.QueryBias(params.layer["u"]), *super().terms(params, dims))


CASES = [*util.CASES, util.Case("shifted", Shifted())]
PARTS = {c: pe_jax.decompose(c.encoding, DIMS) for c in CASES}
WHOLE = [c for c, parts in PARTS.items() if not parts.others]
OF_POSITIONS = [c for c in WHOLE if not PARTS[c].reads_input]
NTK = "rope(scaling=dynamic_ntk(factor=2, original_length=4))"


def plain(case, params, q, k, v, places):
    """Softmax attention of q and k after `rotate`, with `bias`; key heads are repeated."""
    encoding, parts = case.encoding, PARTS[case]
    x = flat(q)
    if parts.embedded:
        q = encoding.embed(params, x, places).reshape(q.shape)
        x = flat(q)
    options = {"x": x, "embedded": True, "dims": DIMS}
    before = q, k, places, params
    q, k, turned = pe_jax.rotate(encoding, *before, v=v, **options)
    added = pe_jax.bias(encoding, places, places, params, **options)
    assert (added is not None) == parts.bias
    k, turned = (jnp.repeat(y, H // K, axis=2) for y in (k, turned))
    scores = parts.scale * jnp.einsum("bthe,bshe->bhts", q, k)
    scores = scores if added is None else scores + added
    index = jnp.arange(T)[None]
    visible = allowed(index, index, None, None, causal=case.causal)[:, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf))
    out = jnp.einsum("bhts,bshf->bthf", weights, turned)
    return pe_jax.rotate(encoding, *before, v=v, out=out, **options)[-1]


@each(WHOLE)
def test_plain_attention_of_the_parts_is_attention(case):
    places = util.spread(case, contiguous(B, T))
    want = util.run(case, "dense", positions=places)

    def run(params, qkv, cotangent):
        out, pull = jax.vjp(functools.partial(plain, case, places=places), params, *qkv)
        return out, pull(cotangent)

    params, cotangent = util.random_params(case.encoding), util.noise(B, T, H, 8, seed=9)
    assert_close(util.jit(run)(params, util.inputs(), cotangent), want, 2e-5)


@each([c for c in OF_POSITIONS if {"q", "k"} & {*PARTS[c].rotated}])
def test_rotated_keys_stay_valid_as_a_row_grows(case):
    """What a prompt and then single tokens append to a cache is what the whole row gives."""
    params, places = util.random_params(case.encoding), util.spread(case, contiguous(T))
    q, k, v = util.inputs()
    turn = util.jit(
        lambda *a: pe_jax.rotate(case.encoding, *a[:3], params, v=a[3], embedded=True, dims=DIMS)
    )
    pieces = [slice(0, 8), *(slice(i, i + 1) for i in range(8, T))]
    grown = [turn(q[:, at], k[:, at], places[at], v[:, at]) for at in pieces]
    grown = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *grown)
    assert_close(grown, turn(q, k, places, v), 5e-6)
    last = turn(q[:, -1:], k, (places[-1:], places), v)
    assert_close(last, (grown[0][:, -1:], *grown[1:]), 5e-6)


@each([c for c in OF_POSITIONS if PARTS[c].bias])
def test_biases_of_some_queries_are_rows_of_the_whole(case):
    params, places = util.random_params(case.encoding), util.spread(case, contiguous(T))
    added = util.jit(lambda *at: pe_jax.bias(case.encoding, *at, params, dims=DIMS))
    whole = added(places, places)
    assert whole.shape == (1, H, T, T) and whole.dtype == jnp.float32
    assert_close(added(places[None, -2:], places), whole[:, :, -2:], 1e-6)
    batch = jnp.stack([places, places + 1])[:, None]  # two axes of rows
    batch = added(batch, places)
    assert batch.shape == (2, 1, H, T, T)
    assert_close(batch[0], whole, 1e-6)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        *((c.encoding, PARTS[c].others) for c in util.SINGLE if PARTS[c].others),
        ("rope+sink", ("Sink",)),
        ("rope@window=4", ("window=4",)),
        ("alibi@chunk=8", ("chunk=8",)),
    ],
    ids=str,
)
def test_what_is_neither_is_named(spec, named):
    q, k, _ = util.inputs()
    params = None if isinstance(spec, str) else util.random_params(spec)
    for call in (
        lambda: pe_jax.rotate(spec, q, k, np.arange(T), params, dims=DIMS),
        lambda: pe_jax.bias(spec, np.arange(T), np.arange(T), params, dims=DIMS),
    ):
        with pytest.raises(ValueError, match="neither a rotation nor a bias") as error:
            call()
        assert all(name in str(error.value) for name in named)


def test_a_length_must_be_set_and_holds_also_under_jit():
    q, k, _ = util.inputs()
    with pytest.raises(ValueError, match=r"at_length\(total_length\)"):
        pe_jax.rotate(NTK, q, k, np.arange(T))
    short = pe_jax.parse(NTK)[0].at_length(T - 1)
    with pytest.raises(ValueError, match=rf"at_length\({T}\)"):
        pe_jax.rotate(short, q, k, np.arange(T))
    turned, _ = jax.jit(lambda at: pe_jax.rotate(short, q, k, at))(np.arange(T))
    assert np.isfinite(turned[:, :-1]).all() and np.isnan(turned[:, -1]).all()


def test_calls_that_would_drop_a_part_are_refused():
    q, k, v = util.inputs()
    at = np.arange(T)
    with pytest.raises(ValueError, match="pass v="):
        pe_jax.rotate("rope+rotated_values", q, k, at)
    with pytest.raises(ValueError, match="embedded"):
        pe_jax.rotate("sinusoidal+rope", q, k, at)
    with pytest.raises(ValueError, match="x=None"):
        pe_jax.bias("fox", at, at, util.random_params(pe_jax.make("fox")), dims=DIMS)
    with pytest.raises(ValueError, match="positions=None"):
        pe_jax.rotate("rope", q, k, None)
    with pytest.raises(ValueError, match="out has shape"):
        pe_jax.rotate("rotated_values", q, k, at, v=v, out=v)


def test_the_scale_is_told():
    for spec, sets, scale in (("t5", True, 1.0), ("pope", False, 8**-0.5), ("tupe", True, 0.25)):
        assert pe_jax.decompose(spec).scales == sets and pe_jax.decompose(spec).scale is None
        assert pe_jax.decompose(spec, DIMS).scale == scale


def test_vectors_keep_their_dtype():
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in util.inputs())
    turned = pe_jax.rotate("rope+rotated_values", q, k, np.arange(T), NONE, v=v, out=q)
    assert {x.dtype for x in turned} == {jnp.dtype(jnp.bfloat16)}
