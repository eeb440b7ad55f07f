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


def weights(inputs, encoding, implementation, **options):
    """The attention weights [B, H, T, S]: the output where the values are unit vectors."""
    batch, keys, heads = inputs["k"].shape[:3]
    unit = np.broadcast_to(np.eye(keys, dtype=np.float32)[:, None], (batch, keys, heads, keys))
    return attend(inputs, encoding, implementation, v=unit, **options).transpose(0, 2, 1, 3)


def both(inputs, encoding, implementation, **options):
    """Weights and output."""
    return {
        "weights": weights(inputs, encoding, implementation, **options),
        "output": attend(inputs, encoding, implementation, **options),
    }


def turned(encoding, inputs, places, layer=()):
    """Queries and keys as a rotation leaves them, of these parameters of a layer."""
    params = pe_jax.Params({}, dict(layer))
    return {side: util.rotate(encoding, side, params, inputs[side], places) for side in "qk"}
