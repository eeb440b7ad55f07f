"""Laws of decoding: a cache gives what the dense engine gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pe_jax.engines.decoding import cache
from tests import util
from tests.contract.laws import OF_KINDS, ONE_AXIS, each
from tests.util import DIMS, B, T, assert_close, contiguous


@functools.cache
def decoder(case, first: int, contiguous: bool = False):
    """The outputs of a prefill of `first` tokens, then of one step for each other token."""

    def decode(params, qkv, positions):
        past = cache.empty(case.encoding, B, T + 2, DIMS)
        shared = {"encoding": case.encoding, "params": params, "dims": DIMS, "embedded": True}

        def extend(past, qkv, places):
            places = None if contiguous else places
            return cache.extend(past, *qkv, places, x=util.flat(qkv[0]), **shared)

        out, past = extend(past, [x[:, :first] for x in qkv], positions[:, :first])

        def step(past, token):
            *qkv, place = (x[:, None] for x in token)
            out, past = extend(past, qkv, place)
            return past, out[:, 0]

        rest = [jnp.moveaxis(x[:, first:], 1, 0) for x in (*qkv, positions)]
        past, more = jax.lax.scan(step, past, rest)
        return jnp.concatenate([out, jnp.moveaxis(more, 0, 1)], axis=1), past.length

    return util.jit(decode)


def decodes(case, places, **how):
    """Asserts that what is decoded is what dense attention gives."""
    q, k, v = util.inputs()
    params = util.random_params(case.encoding)
    embedded = case.encoding.embed(params, q.reshape(B, T, -1), places)
    run = decoder(case, 4, **how)
    out, length = run(params, (np.reshape(embedded, q.shape), k, v), places)
    np.testing.assert_array_equal(length, [T] * B)
    assert_close(out, util.run(case, "dense", positions=places)[0])


@each([c for c in util.CASES if c.causal])
@given(st.data())
def test_decoding_with_a_cache_equals_dense(case, data):
    decodes(case, data.draw(util.positions(case)))


@each([c for c in ONE_AXIS if c.causal], quick=OF_KINDS)
def test_decoding_contiguous_tokens_equals_dense(case):
    decodes(case, contiguous(B, T), contiguous=True)
