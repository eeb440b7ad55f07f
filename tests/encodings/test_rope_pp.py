"""RoPE++ against its complex sum, as a layer of the authors' model has it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings.base import Params
from pe_jax.models import surgery
from pe_jax.models.config import ModelConfig
from pe_jax.models.layers import Attention
from pe_jax.models.transformer import Transformer
from pe_jax.training.utilization import flops_per_token
from pe_jax.validation import ConfigError
from tests import util

WIDTH, HEAD_DIM, LENGTH = 32, 8, 11
# of RoPE: H heads and K key heads; then (heads, projected queries, key heads) of each variant
SIZES = {"heads": (4, 2, 1), "cache": (8, 4, 2)}


def config(encoding: str, **fields) -> ModelConfig:
    return ModelConfig(encoding=encoding, vocab=17, width=WIDTH, heads=4, kv_heads=2, **fields)


@pytest.mark.parametrize("equal", SIZES)
def test_a_layer_is_the_authors(equal):
    """Theirs stacks q·e^(iθm) and -i times it for each query: heads 2h and 2h + 1."""
    heads, queries, keys = SIZES[equal]
    layer = Attention(
        config(f"rope_pp(equal={equal!r})"),
        pe_jax.encodings.windowed.Windowed(pe_jax.make("rope_pp", equal=equal)),
        nnx.Rngs(0, encoding=1),
    )
    x = util.noise(1, LENGTH, WIDTH)
    q, k, v = (np.asarray(f(x), np.float64)[0] for f in (layer.q, layer.k, layer.v))
    assert (q.shape[1], k.shape[1]) == (queries * HEAD_DIM, keys * HEAD_DIM)
    pairs = HEAD_DIM // 2
    wave = np.exp(1j * np.outer(np.arange(LENGTH), 1e4 ** (-np.arange(pairs) / pairs)))

    def pair(y):  # [T, heads, E/2], turned by the position
        y = y.reshape(LENGTH, -1, 2, pairs)
        return (y[:, :, 0] + 1j * y[:, :, 1]) * wave[:, None]

    shared = heads // keys
    k, v = np.repeat(pair(k), shared, 1), np.repeat(v.reshape(LENGTH, keys, HEAD_DIM), shared, 1)
    product = np.einsum("thp,shp->hts", np.repeat(pair(q), 2, 1), k.conj())
    imaginary = (np.arange(heads) % 2 == 1)[:, None, None]
    scores = np.where(imaginary, -1j * product, product).real / HEAD_DIM**0.5
    weights = pe_jax.naive.softmax(scores, True)
    out = np.einsum("hts,shf->thf", weights, v).reshape(LENGTH, -1)
    want = out @ np.asarray(layer.out.kernel[...], np.float64)
    found, _ = layer(x, {}, None, None, None)
    util.assert_close(found[0], want)


@given(st.integers(-500, 500), st.integers(-500, 500))
def test_only_the_difference_of_positions_counts(m, n):
    encoding, none = pe_jax.make("rope_pp"), Params({}, {})
    x, y = util.noise(1, 4, HEAD_DIM, seed=1), util.noise(1, 4, HEAD_DIM, seed=2)

    def product(m, n):
        at = [np.array([place], np.int32) for place in (m, n)]
        q, k = (
            util.rotate(encoding, *given, p)
            for given, p in ((("q", none, x), at[0]), (("k", none, y), at[1]))
        )
        return (q * k).sum(-1)

    util.assert_close(product(m, n), product(0, n - m), 5e-4)


@pytest.mark.parametrize("pattern", ["rope_pp", "rope_pp(equal='cache')", "rope_pp+alibi,rope"])
def test_a_model_trains_and_decodes_with_the_cache_of_its_variant(pattern):
    model = Transformer(config(pattern, layers=2), rngs=nnx.Rngs(0, encoding=1))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 17, (2, LENGTH)))
    run = jax.jit(model)
    full, cache = run(tokens), model.init_cache(2, LENGTH)
    assert cache[0].k.shape[1] == SIZES["cache" if "cache" in pattern else "heads"][2]
    first, cache = run(tokens[:, :4], cache=cache)
    steps = [first]
    for t in range(4, LENGTH):
        step, cache = run(tokens[:, t : t + 1], cache=cache)
        steps.append(step)
    util.assert_close(jnp.concatenate(steps, 1), full, 1e-5)
    grads = nnx.jit(nnx.grad(lambda m: (m(tokens) ** 2).sum()))(model)
    assert all(np.isfinite(x).all() and x.any() for x in jax.tree.leaves(grads))


def test_sizes_next_to_rope():
    """Half the queries, keys and values; or as many, and twice the output (paper, §3.2)."""
    counts, products = {}, {}
    for spec in ("rope", "rope_pp", "rope_pp(equal='cache')"):
        chosen = config(spec, layers=1)
        shapes = nnx.eval_shape(lambda c=chosen: Transformer(c, rngs=nnx.Rngs(0)))
        layer = shapes.blocks[0].attention
        counts[spec] = [f.kernel.shape[1:] for f in (layer.q, layer.k, layer.v, layer.out)]
        products[spec] = [
            flops_per_token(chosen, nnx.as_pure(nnx.state(shapes)), n) for n in (10, 110)
        ]
    assert counts["rope"] == [(32, 32), (32, 16), (32, 16), (32, 32)]
    assert counts["rope_pp"] == [(32, 16), (32, 8), (32, 8), (32, 32)]
    assert counts["rope_pp(equal='cache')"] == [(32, 32), (32, 16), (32, 16), (64, 32)]
    rope, halves, double = ((b - a) / 100 for a, b in products.values())
    assert (halves, double) == (rope, 2 * rope)


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ConfigError, match=r"kv_heads=1: equal='heads' halves them"):
        ModelConfig(encoding="rope_pp", heads=4, kv_heads=1).check()
    with pytest.raises(ValueError, match="heads=3: real and imaginary heads are pairs"):
        pe_jax.make("rope_pp").check(pe_jax.Dims(24, 3, 3, 8))
    model = Transformer(config("rope"), rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match="2 queries for 4 heads, 1 key heads: the weights, of"):
        surgery.with_encoding(model, "rope_pp")
