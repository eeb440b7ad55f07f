"""A Transformer in plain JAX with borrowed RoPE, ALiBi and T5 bias: trained, decoded, exported.

    python -m examples.plain_jax

prints for each the loss before and after 100 steps, how far its parameters moved, and by how much
logits differ from those of the whole row at once when decoded token by token, or when exported.
The borrowed code is in `attend`, `init` and `main`.
"""

import functools

import jax
import jax.numpy as jnp

import pe_jax
from examples import repeat

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=2, head_dim=8)


def init(encoding, key):
    """Weights by name; those of the encoding are among them, and train as they do."""
    width, heads, kv_heads, head_dim = DIMS.width, DIMS.heads, DIMS.kv_heads, DIMS.head_dim
    shapes = {"embed": (repeat.VOCAB, width), "head": (width, repeat.VOCAB)}
    shapes |= {
        "q": (repeat.LAYERS, width, heads, head_dim),
        "out": (repeat.LAYERS, heads, head_dim, width),
    }
    shapes |= {name: (repeat.LAYERS, width, kv_heads, head_dim) for name in "kv"}
    shapes |= {"up": (repeat.LAYERS, width, 4 * width), "down": (repeat.LAYERS, 4 * width, width)}
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
    weights = {name: width**-0.5 * jax.random.normal(keys[name], shapes[name]) for name in shapes}
    layers = [encoding.init_layer(each, DIMS) for each in jax.random.split(key, repeat.LAYERS)]
    return weights | {"position": pe_jax.Params(encoding.init_shared(key, DIMS), layers)}


def attend(encoding, params, q, k, v, cache):
    """Attention in the whole row, or of the next tokens to all in the cache, which it extends."""
    if cache is None:
        return pe_jax.attention(q, k, v, encoding=encoding, params=params), None
    return pe_jax.cache.extend(cache, q, k, v, encoding=encoding, params=params, dims=DIMS)


def model(encoding, w, tokens, caches=(None,) * repeat.LAYERS):
    """Tokens [B, T] to logits [B, T, V], and the caches of the layers."""
    x, longer = w["embed"][tokens], []
    for i, cache in enumerate(caches):
        y = jax.nn.standardize(x)
        q, k, v = (jnp.einsum("btd,dhe->bthe", y, w[name][i]) for name in "qkv")
        params = pe_jax.Params(w["position"].shared, w["position"].layer[i])
        y, cache = attend(encoding, params, q, k, v, cache)
        x += jnp.einsum("bthe,hed->btd", y, w["out"][i])
        x += jax.nn.gelu(jax.nn.standardize(x) @ w["up"][i]) @ w["down"][i]
        longer.append(cache)
    return jax.nn.standardize(x) @ w["head"], longer


def main(scheme: str) -> None:
    """Trains, decodes and exports a model with this encoding."""
    (encoding,) = pe_jax.parse(scheme)
    before = init(encoding, jax.random.key(1))

    def logits(w, tokens):
        return model(encoding, w, tokens)[0]

    after, losses = repeat.train(logits, before)
    tokens = repeat.batches()[0]
    full = jax.jit(logits)(after, tokens)
    cache = pe_jax.cache.empty(encoding, *tokens.shape, dims=DIMS)
    step = functools.partial(model, encoding, after)
    decoded = repeat.decode(step, [cache] * repeat.LAYERS, tokens)
    program = repeat.exported(functools.partial(logits, after))
    moved = repeat.gap(before["position"], after["position"])
    repeat.report(scheme, losses, moved, full, decoded, program(tokens))


if __name__ == "__main__":
    for scheme in repeat.SCHEMES:
        main(scheme)
