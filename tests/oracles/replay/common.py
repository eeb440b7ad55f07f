"""Our attention on an oracle's inputs, as its output, its weights, or its rotations alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from tests import util


@functools.partial(jax.jit, static_argnames=("encoding", "causal", "implementation"))
def _attention(q, k, v, x, positions, encoding, params, causal, implementation):
    queries, keys = positions
    return pe_jax.attention(
        *(q, k, v),
        encoding=encoding,
        params=params,
        x=x,
        q_positions=queries,
        k_positions=keys,
        q_index=queries,
        k_index=keys,
        causal=causal,
        implementation=implementation,
    )


@functools.partial(jax.jit, static_argnames=("encoding", "implementation"))
def _anywhere(q, k, v, at, encoding, params, implementation):
    given = {"encoding": encoding, "params": params, "implementation": implementation}
    return pe_jax.attention(q, k, v, q_positions=at, causal=False, **given)


def attend(inputs, encoding, implementation, *, params=((), ()), causal=False, v=None, at=None):
    """Our attention on an oracle's q, k, v [B, T or S, H, E]; the queries are the last tokens.

    `at` are the positions of all tokens, where they are not 0, 1, 2, …; then no token is hidden.
    """
    q, k, v = inputs["q"], inputs["k"], inputs["v"] if v is None else v
    params = pe_jax.Params(*jax.tree.map(jnp.asarray, tuple(params)))
    if at is not None:
        return _anywhere(q, k, v, at, encoding, params, implementation)
    keys = np.arange(k.shape[1])
    places = keys[keys.size - q.shape[1] :], keys
    return _attention(q, k, v, inputs.get("x"), places, encoding, params, causal, implementation)


def both(inputs, encoding, implementation, **options):
    """The weights [B, H, T, S], which are the output where values are unit vectors, and the output.

    One program: unit vectors are further channels of the values.
    """
    batch, keys, heads = inputs["k"].shape[:3]
    unit = np.broadcast_to(np.eye(keys, dtype=np.float32)[:, None], (batch, keys, heads, keys))
    wide = np.concatenate([unit, inputs["v"]], axis=-1)
    out = np.asarray(attend(inputs, encoding, implementation, v=wide, **options))
    return {"weights": out[..., :keys].transpose(0, 2, 1, 3), "output": out[..., keys:]}


def weights(inputs, encoding, implementation, **options):
    """The weights alone, where there are no values or they get a term."""
    none = inputs | {"v": np.zeros((*inputs["k"].shape[:3], 0), np.float32)}
    return both(none, encoding, implementation, **options)["weights"]


def turned(encoding, inputs, places, layer=()):
    """Queries and keys as a rotation leaves them, of these parameters of a layer."""
    params = pe_jax.Params({}, dict(layer))

    @util.jit
    def rotate(arrays):
        return {side: util.rotate(encoding, side, params, x, places) for side, x in arrays.items()}

    return rotate({side: inputs[side] for side in "qk"})
