"""The cache, given what does not fit: one line that says what, and what would."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import Params
from pe_jax.engines.decoding import cache
from tests import util
from tests.faults.attention_calls import FOX, K_, NTK, ROPE, T5, Q, T, V, X, extend, refuses
from tests.util import DIMS, B

CACHE_FAULTS = {
    "too small": (ValueError, "0 of 4 … 5 more … capacity >= 5", dict(capacity=4)),
    "no capacity": (ValueError, "capacity=0 … at least 1", dict(capacity=0)),
    "one row for two": (ValueError, "k has shape (1, 5", dict(q=Q[:1], k=K_[:1], v=V[:1])),
    "key heads": (ValueError, "(2, 5, 1, 8) … (2, 5, 2, 8)", dict(k=K_[:, :, :1])),
    "value width": (ValueError, "v has shape (2, 5, 2, 3)", dict(v=V[..., :3])),
    "value length": (ValueError, "v (2, 4, 2, 8) do not fit", dict(v=V[:, :4])),
    "lengths": (ValueError, "q (2, 5 … k (2, 4", dict(k=K_[:, :4])),
    "positions": (ValueError, "positions has shape [4] … [5]", dict(positions=np.arange(4))),
    "one position": (ValueError, "shape [1, 1]", dict(positions=np.zeros((1, 1), int))),
    "float positions": (
        TypeError,
        "float32 … integers",
        dict(positions=np.zeros((1, T), np.float32), encoding=T5),
    ),
    "the input alone": (
        ValueError,
        "embedded=False: Learned adds to the input",
        dict(encoding=pe_jax.make("learned")),
    ),
    "no length": (ValueError, "encoding.at_length(total_length)", dict(encoding=NTK)),
    "more room than its length": (
        ValueError,
        "capacity=8: RoPE is set for 3 tokens; pass encoding.at_length(8)",
        dict(encoding=NTK.at_length(3)),
    ),
    "a position beyond its length": (
        ValueError,
        "positions goes to position 9, RoPE is set for 8 tokens; pass encoding.at_length(10)",
        dict(encoding=NTK.at_length(8), positions=5 + np.arange(T)),
    ),
    "the table of one head": (
        ValueError,
        "params.shared.table has shape [1, 32]; T5 takes [4, 32]",
        dict(encoding=T5, params=Params({"table": np.zeros((1, 32))}, {})),
    ),
    "no input": (ValueError, "x=None: FoX reads", dict(encoding=FOX)),
    "another input": (
        ValueError,
        "x has shape (2, 5, 24); pass [2, 5, 32]",
        dict(encoding=FOX, x=X[..., :24]),
    ),
}


@pytest.mark.parametrize("kind, message, options", CACHE_FAULTS.values(), ids=list(CACHE_FAULTS))
def test_the_cache_refuses(kind, message, options):
    refuses(kind, message, extend, **options)


def test_a_full_cache_under_a_trace_gives_nan_and_never_an_overwrite():
    params = util.random_params(ROPE)

    @jax.jit
    def twice(past):
        options = {"encoding": ROPE, "params": params, "dims": DIMS}
        for _ in range(2):
            out, past = cache.extend(past, Q, K_, V, util.contiguous(1, T), **options)
        return out

    assert np.isnan(twice(cache.empty(ROPE, B, T + 1, DIMS))).all()
    assert np.isfinite(twice(cache.empty(ROPE, B, 2 * T, DIMS))).all()
