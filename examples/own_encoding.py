"""An encoding of your own: one class says what it adds to attention; engines do the rest.

    python -m examples.own_encoding

prints by how much tiles, and decoding token by token, differ from attention with all scores at
once: rounding. One line in your own program (examples/compare_mine.py) gives it a name in
configs; in `pe_jax/encodings/schemes.py` it is held to the laws of tests/contract/ too.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pe_jax

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=2, head_dim=8)


@dataclasses.dataclass(frozen=True)
class LogBias(pe_jax.Encoding):
    """Subtracts a learned multiple of ln(1 + |distance|)."""

    def init_layer(self, key, dims):
        return {"rate": jax.random.uniform(key, (dims.heads,))}

    def terms(self, params, dims):
        return (pe_jax.DistanceBias(log_bias, params.layer["rate"]),)


def log_bias(rate, distance):
    """The bias of each head [H, *n], for distances [*n] = query - key."""
    return -rate.reshape(-1, *(1,) * distance.ndim) * jnp.log1p(jnp.abs(distance))


def gaps(encoding: pe_jax.Encoding, length: int = 600) -> tuple[float, float]:
    """The largest differences from attention with all scores at once: of tiles, of decoding."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = encoding.init(keys[0], DIMS)
    heads = DIMS.heads, DIMS.kv_heads, DIMS.kv_heads
    q, k, v = (
        jax.random.normal(key, (1, length, n, DIMS.head_dim))
        for key, n in zip(keys[1:], heads, strict=True)
    )
    options = {"encoding": encoding, "params": params, "dims": DIMS}
    dense = pe_jax.attention(q, k, v, **options, implementation="dense")
    tiles = pe_jax.attention(q, k, v, **options, implementation="tiled")
    cache = pe_jax.cache.empty(encoding, 1, length, DIMS, params=params)
    _, cache = pe_jax.cache.extend(cache, q[:, :-1], k[:, :-1], v[:, :-1], **options)
    last, _ = pe_jax.cache.extend(cache, q[:, -1:], k[:, -1:], v[:, -1:], **options)
    return float(jnp.abs(tiles - dense).max()), float(jnp.abs(last - dense[:, -1:]).max())


if __name__ == "__main__":
    print("tiles differ by {:.0e}, decoding by {:.0e}".format(*gaps(LogBias())))
