"""Partial key offset against its sources' shifts, and what a document may see of another."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

import pe_jax
from pe_jax.engines.sharded.layout import CONTIGUOUS, BlockPermuted
from pe_jax.models.config import ModelConfig
from pe_jax.models.transformer import Transformer
from tests import util
from tests.util import DIMS, B, E, T, assert_close

TURNING = "rope(scaling=proportional(fraction=0.5))"  # half-truncated: pairs i and i + E/2, i < E/4
NO_PARAMS = pe_jax.Params(({}, {}), ({}, {}))


def shifted_as(source: str, k: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Keys [B, T, K, E] as the sources shift them, after rotations that leave these channels."""
    moved = k.copy()
    if source == "modded-nanogpt":  # one document: two ranges of channels
        for part in (slice(E // 4, E // 2), slice(3 * E // 4, E)):
            moved[:, 1:, :, part] = k[:, :-1, :, part]
        return moved
    stationary = k[..., E // 2 :]  # marin #5795: at the start of a document its own
    before = np.concatenate([stationary[:, :1], stationary[:, :-1]], 1)
    starts = np.concatenate([np.ones_like(ids[:, :1], bool), ids[:, 1:] != ids[:, :-1]], 1)
    moved[..., E // 2 :] = np.where(starts[..., None, None], stationary, before)
    return moved


@pytest.mark.parametrize(
    "source, rope, spec",
    [
        ("modded-nanogpt", TURNING, f"{TURNING}+key_offset(halves=True)"),
        ("marin", "rope(fraction=0.5)", "rope(fraction=0.5)+key_offset"),
    ],
)
def test_keys_are_those_of_the_source(source, rope, spec):
    q, k, v = util.inputs()
    ids = np.repeat(np.int32([[0, 1, 4]]), [3, 1, T - 4], axis=1).repeat(B, 0)
    given = {} if source == "modded-nanogpt" else {"q_segments": ids}
    want = pe_jax.attention(q, shifted_as(source, k, ids), v, encoding=rope, **given)
    for engine in ("dense", util.TILED):
        found = pe_jax.attention(q, k, v, encoding=spec, implementation=engine, **given)
        assert_close(found, want)


@pytest.mark.parametrize("engine", ["dense", util.TILED])
def test_a_document_sees_no_key_of_the_one_before(engine):
    """The trap of shifting whole rows (marin #5801)."""
    q, k, v = util.inputs()
    ids = np.repeat(np.int32([[0, 1]]), [5, T - 5], axis=1).repeat(B, 0)

    def total(k):
        given = {"encoding": "key_offset", "implementation": engine, "q_segments": ids}
        return (pe_jax.attention(q, k, v, **given)[:, 5:] ** 2).sum()

    grad = jax.grad(total)(jnp.asarray(k))
    assert not grad[:, :5].any() and grad[:, 5:].any()


@pytest.mark.parametrize("told", ["segments", "lengths", "mask"])
def test_padding_is_no_key_before(told):
    """Left padding by segments or a mask, right padding by lengths; keys of it hold anything."""
    q, k, v = (np.array(x) for x in util.inputs())
    real = slice(4) if told == "lengths" else slice(T - 4, None)
    want = pe_jax.attention(*(x[:, real] for x in (q, k, v)), encoding="key_offset")
    is_token = np.zeros((B, T), bool)
    is_token[:, real] = True
    k[~is_token] = np.nan
    given = {
        "segments": {"q_segments": np.where(is_token, 0, -1)},
        "lengths": {"q_lengths": np.full(B, 4)},
        "mask": {"mask": is_token[:, None, None]},
    }[told]
    assert_close(pe_jax.attention(q, k, v, encoding="key_offset", **given)[:, real], want)


@pytest.mark.parametrize("window", [None, 3])
def test_a_cache_goes_on_from_the_last_key_of_the_document(window):
    """Two documents, padding in front of, within and between them, in steps of any size."""
    ids = np.int32([-1, 2, 2, -1, 2, -1, 5, 5, 5, 5, -1, 5, 5])[None].repeat(B, 0)
    inputs, own = util.inputs(), {"encoding": "rope+key_offset", "params": NO_PARAMS}
    own |= {"dims": DIMS} | ({} if window is None else {"window": window})
    extend = jax.jit(functools.partial(pe_jax.cache.extend, **own))
    real = np.flatnonzero(ids[0] >= 0)
    packed = [x[:, real] for x in inputs]
    want = pe_jax.attention(*packed, q_segments=ids[:, real], **own)
    for sizes in ([1] * T, [3, 1, 7, 2], [T]):
        encoding = pe_jax.parse("rope+key_offset")[0]
        cache, outs, start = pe_jax.cache.empty(encoding, B, T, DIMS), [], 0
        for size in sizes:
            step = slice(start, start + size)
            out, cache = extend(cache, *(x[:, step] for x in inputs), segments=ids[:, step])
            outs, start = [*outs, out], start + size
        assert_close(np.concatenate(outs, 1)[:, real], want)


def test_a_model_decodes_padded_prompts_as_it_reads_them_alone():
    pattern = "rope(fraction=0.5)@window=4,rope(fraction=0.5)+key_offset"
    config = ModelConfig(
        encoding=pattern, vocab=17, width=32, heads=4, kv_heads=2, dtype="bfloat16"
    )
    model = Transformer(config, rngs=nnx.Rngs(0, encoding=1))
    run = jax.jit(model)
    tokens = np.random.default_rng(0).integers(0, 17, (1, 9))
    alone = run(tokens)
    padded = np.concatenate([np.full((1, 3), 5), tokens], 1)
    ids = np.where(np.arange(12) < 3, -1, 0)[None]
    _, cache = run(padded[:, :8], segments=ids[:, :8], cache=model.init_cache(1, 12, padded=True))
    for t in range(8, 12):
        step, cache = run(padded[:, t : t + 1], segments=ids[:, t : t + 1], cache=cache)
        assert_close(step[:, 0], alone[:, t - 3], 0.03)


@pytest.mark.parametrize("balanced", [True, False])
def test_a_layout_knows_the_token_before(balanced):
    mesh = jax.make_mesh((4,), ("seq",), (AxisType.Auto,), devices=jax.devices()[:4])
    layout = BlockPermuted(mesh, balanced=balanced)
    x = jnp.asarray(util.noise(B, 24, 3))
    found = jax.jit(lambda x: layout.restore(layout.previous(layout.spread(x), 1, first=7)))(x)
    np.testing.assert_array_equal(found, CONTIGUOUS.previous(x, 1, first=7))
    assert (found[:, 0] == 7).all() and (found[:, 1:] == x[:, :-1]).all()


def test_what_cannot_know_the_key_before_is_an_error():
    q, k, v = util.inputs()
    index = np.arange(T)
    with pytest.raises(ValueError, match="k_index=.*reads the key before each, in order"):
        pe_jax.attention(q, k, v, encoding="key_offset", q_index=index, k_index=index)
    with pytest.raises(ValueError, match="PartialKeyOffset has KeyOffset: neither a rotation nor"):
        pe_jax.rotate("key_offset", q, k, np.arange(T))
    with pytest.raises(ValueError, match="2 terms offset keys; keep at most one"):
        pe_jax.attention(q, k, v, encoding="key_offset+key_offset(halves=True)")
    with pytest.raises(ValueError, match=r"fraction=0\.3: it leaves 2\.4 of 8 channels"):
        pe_jax.make("key_offset", fraction=0.3).check(DIMS)
    encoding = pe_jax.make("key_offset")
    own = {"encoding": encoding, "params": pe_jax.Params({}, {}), "dims": DIMS}
    held = pe_jax.cache.empty(encoding, B, T, DIMS)
    with pytest.raises(ValueError, match="which tokens are padding: pass segments= instead"):
        pe_jax.cache.extend(held, q, k, v, mask=np.ones((1, 1, T, T), bool), **own)
    with pytest.raises(ValueError, match="truncate: this scheme keeps the last key"):
        pe_jax.cache.truncate(pe_jax.cache.extend(held, q, k, v, **own)[1], 3)
