"""What tests of faults share: a call that may fail, and what its error must say."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import terms as kinds
from tests import util
from tests.encodings.common import qkv, random_params

PLACES = np.arange(qkv()[0].shape[0], dtype=np.int32)
WIDE = pe_jax.Dims(16, 2, 2, 8)  # two axes rotate four channels at once


def attend(encoding, params=None, **options):
    """Our attention on 11 tokens, two heads of 8; positions are the same on every axis."""
    params = params or random_params(encoding, WIDE)
    if encoding.claims.axes > 1:
        at = options["q_positions"]
        options["q_positions"] = np.stack([at] * encoding.claims.axes, axis=-1)
    q, k, v = np.random.default_rng(0).standard_normal((3, len(PLACES), 2, 8), np.float32)
    options |= {"x": q.reshape(len(q), -1)} if kinds.reads_input(util.terms(encoding)) else {}
    options |= {"causal": True, "embedded": True}
    return pe_jax.attention(
        q, k, v, encoding=encoding, params=params, implementation="dense", **options
    )


def refused(call, *words, error=ValueError):
    """The call raises one line that holds all the words."""
    with pytest.raises(error) as info:
        call()
    message = str(info.value)
    assert "\n" not in message and len(message) < 500
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
