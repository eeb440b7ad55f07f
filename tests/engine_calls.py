"""What an engine takes, says and traces, for tests that call one without `attention` around it."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp

from pe_jax.encodings.base import Encoding, Params
from pe_jax.encodings.terms import Side, Sink, Tokens, select
from pe_jax.engines import pipeline
from pe_jax.engines.attention_spec import AttentionSpec


def arguments(
    encoding: Encoding,
    spec: AttentionSpec,
    params: Params,
    qkv,
    q_tokens: Tokens,
    k_tokens: Tokens | None = None,
):
    """The spec, terms and both sides, with rotated q and k, so that gradients pass through.

    Args:
      encoding: one without states.
      spec: sizes and mask.
      params: the encoding's.
      qkv: q [B, H, T, E], k [B, K, S, E] and v [B, K, S, F], before rotations.
      q_tokens: positions and the rest.
      k_tokens: the same for the keys; None: as those of the queries.
    """
    terms = encoding.terms(params, spec.dims)
    spec = dataclasses.replace(spec, lse=bool(select(terms, Sink)))
    states = (None,) * len(terms)

    def side(name: str, x: jax.Array, tokens: Tokens) -> Side:
        tokens_first = jnp.swapaxes(jnp.asarray(x), 1, 2)
        rotated = pipeline.rotate(terms, name, tokens_first, tokens.positions, states)
        return Side(jnp.swapaxes(rotated, 1, 2), x, states, tokens)

    q, k, v = qkv
    return spec, terms, side("q", q, q_tokens), side("k", k, k_tokens or q_tokens), v


def answer(question, make_arguments, *arrays):
    """What an engine's function says of arguments, of which only shapes are known."""
    said = []
    jax.eval_shape(lambda *arrays: said.append(question(*make_arguments(*arrays))), *arrays)
    return said[0]


def equations(jaxpr, name):
    """The equations of a primitive, in every nested program but its own."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        else:
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from equations(inner, name)
