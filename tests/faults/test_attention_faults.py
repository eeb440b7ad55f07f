"""Attention, given what does not fit: one line that says what, and what would."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given

import pe_jax
from pe_jax import Params
from pe_jax.encodings import learned
from tests import util
from tests.faults.attention_calls import (
    FAR,
    FOX,
    K_,
    NO_PARAMS,
    NTK,
    ROPE,
    SHAW,
    T5,
    Q,
    T,
    V,
    X,
    attention,
    refuses,
)
from tests.util import DIMS, B, E, H


def at(*values, dtype=np.int32):
    return np.asarray(values, dtype)


FAULTS = {
    "odd head width": (
        ValueError,
        "head_dim=7 … even",
        dict(q=Q[..., :7], k=K_[..., :7], encoding=ROPE),
    ),
    "fraction": (
        ValueError,
        "fraction=0.4 … even",
        dict(encoding=pe_jax.make("rope", fraction=0.4)),
    ),
    "key heads": (
        ValueError,
        "k has 3 heads … [1, 2, 4]",
        dict(k=Q[:, :, :3], v=Q[:, :, :3]),
    ),
    "key batch": (ValueError, "(2, 5, 4, 8) … (1, 5, 2, 8) … batch", dict(k=K_[:1], v=V[:1])),
    "value batch": (ValueError, "(2, 5, 2, 8) … (1, 5, 2, 8)", dict(v=V[:1])),
    "value length": (ValueError, "(2, 1, 2, 8)", dict(v=V[:, :1])),
    "key width": (ValueError, "same width", dict(k=K_[..., :4])),
    "value width": (ValueError, "v has width 1 … 8", dict(v=V[..., :1], encoding=SHAW)),
    "rank": (ValueError, "q has shape (4, 8) … [*B, length, heads, width]", dict(q=Q[0, 0])),
    "integers": (TypeError, "v has dtype int32 … float32", dict(v=np.ones(V.shape, np.int32))),
    "dims": (ValueError, "4 heads of 8 … 8 of 4", dict(dims=pe_jax.Dims(32, 8, 2, 4))),
    "a list": (TypeError, "k=[[[ … is a list; pass an array", dict(k=K_.tolist())),
    "causal": (ValueError, "causal='no' … True or False", dict(causal="no")),
    "a short table": (
        ValueError,
        "params.shared.table has shape [4, 16]; T5 takes [4, 32] for … init(key, dims)",
        dict(encoding=T5, params=Params({"table": np.zeros((H, 16))}, {})),
    ),
    "a name": (TypeError, "encoding=[RoPE … pe_jax.make", dict(encoding=[ROPE])),
    "no input": (ValueError, "x=None: FoX reads … pass x=", dict(encoding=FOX)),
    "another input": (
        ValueError,
        "x has shape (2, 4, 32) … [2, 5, 32]",
        dict(encoding=FOX, x=X[:, 1:]),
    ),
    "rows in tiles": (
        ValueError,
        "implementation='tiled' … DAPE needs whole rows … 'dense'",
        dict(encoding=pe_jax.make("dape"), implementation="tiled"),
    ),
    "sinks alone": (ValueError, "sinks=2: pass a window", dict(sinks=2)),
    "negative sinks": (ValueError, "sinks=-1 … at least 0", dict(window=2, sinks=-1)),
    "no params": (ValueError, "T5 … encoding.init(", dict(encoding=T5, params=None)),
    "params": (TypeError, "params is a dict … pe_jax.Params", dict(encoding=T5, params={})),
    "a table": (
        ValueError,
        "params.shared has no table for T5; pass encoding.init(",
        dict(encoding=T5, params=Params({}, {"table": np.zeros((H, 32))})),
    ),
    "a table of a part": (
        ValueError,
        "params.shared has no 0.table for Sum",
        dict(encoding=pe_jax.Sum((T5, ROPE)), params=NO_PARAMS),
    ),
    "the table of one head": (
        ValueError,
        "params.shared.table has shape [1, 32]; T5 takes [4, 32] for … heads=4 … init(key, dims)",
        dict(encoding=T5, params=Params({"table": np.zeros((1, 32))}, {})),
    ),
    "parameters of other heads": (
        ValueError,
        "params.shared.0.table has shape [8, 32]; T5+RoPE takes [4, 32] … dims=",
        dict(
            encoding=pe_jax.Sum((T5, ROPE)), params=Params(({"table": np.zeros((8, 32))}, {}), {})
        ),
    ),
    "parameters of another width": (
        ValueError,
        "params.layer.weight has shape [24, 4]; FoX takes [32, 4] for Dims(width=32",
        dict(
            encoding=FOX,
            x=X,
            params=Params({}, {"bias": X[0, 0, :H], "weight": X[0, :1, :24].T * np.ones(H)}),
        ),
    ),
    "an input of another width": (
        ValueError,
        "x has shape (2, 5, 24); pass [2, 5, 32]",
        dict(encoding=FOX, x=X[..., :24], dims=DIMS),
    ),
    "all see all, one-sided": (
        ValueError,
        "causal=False: all later tokens look alike to T5; … bidirectional=True … causal=True",
        dict(encoding=T5, causal=False),
    ),
    "all see all, one-sided part": (
        ValueError,
        "causal=False: all later tokens look alike to T5+RoPE",
        dict(encoding=pe_jax.Sum((T5, ROPE)), causal=False),
    ),
    "all see all, causal alone": (
        ValueError,
        "causal=False: XPos is for causal attention alone",
        dict(encoding=pe_jax.make("xpos"), causal=False),
    ),
    "several axes, no word on the mask": (
        ValueError,
        "causal=None: RoPE2D has 2 axes; pass True, or False",
        dict(encoding=pe_jax.make("rope_2d"), q_positions=np.zeros((T, 2), int)),
    ),
    "no length, positions": (
        ValueError,
        "RoPE depends on the length … encoding.at_length(total_length)",
        dict(encoding=NTK, q_positions=np.arange(T)),
    ),
    "no length, a part": (
        ValueError,
        "T5+RoPE depends on the length … encoding.at_length(total_length)",
        dict(encoding=pe_jax.Sum((T5, NTK)), q_positions=np.arange(T)),
    ),
    "no length, other keys": (
        ValueError,
        "RoPE depends on the length … encoding.at_length(total_length)",
        dict(
            encoding=NTK,
            k=K_[:, :3],
            v=V[:, :3],
            q_positions=np.arange(T),
            k_positions=np.arange(3),
        ),
    ),
    "more tokens than its length": (
        ValueError,
        "q goes to position 4, RoPE is set for 3 tokens; pass encoding.at_length(5)",
        dict(encoding=NTK.at_length(3)),
    ),
    "a position beyond its length": (
        ValueError,
        "k_positions goes to position 9, RoPE is set for 8 tokens; pass encoding.at_length(10)",
        dict(encoding=NTK.at_length(8), q_positions=np.arange(T), k_positions=5 + np.arange(T)),
    ),
    "engine": (ValueError, "'tield' … 'tiled'", dict(implementation="tield")),
    "GPU": (ValueError, "'fused': it needs a GPU … a CPU … 'tiled'", dict(implementation="fused")),
    "TPU": (ValueError, "'tpu': it needs a TPU … a CPU … 'tiled'", dict(implementation="tpu")),
    "window 0": (ValueError, "window=0 … at least 1", dict(window=0)),
    "window 1.5": (ValueError, "window=1.5 … integer", dict(window=1.5)),
    "window True": (ValueError, "window=True … integer", dict(window=True)),
    "lengths": (ValueError, "5 tokens … 3 … q_positions", dict(k=K_[:, :3], v=V[:, :3])),
    "lengths, no index": (
        ValueError,
        "5 tokens … 3 … q_index",
        dict(
            k=K_[:, :3],
            v=V[:, :3],
            q_positions=np.arange(T),
            k_positions=np.arange(3),
        ),
    ),
    "k_positions alone": (ValueError, "pass both", dict(k_positions=np.arange(T))),
    "k_segments alone": (ValueError, "pass both", dict(k_segments=np.zeros((B, T), int))),
    "float positions": (
        TypeError,
        "q_positions has dtype float32 … integers",
        dict(encoding=T5, q_positions=np.arange(T, dtype=np.float32)),
    ),
    "bf16 positions": (
        TypeError,
        "q_positions has dtype bfloat16",
        dict(encoding=ROPE, q_positions=jnp.zeros(T, jnp.bfloat16)),
    ),
    "bool positions": (TypeError, "dtype bool", dict(q_positions=np.zeros(T, bool))),
    "NaN positions": (
        ValueError,
        "q_positions … finite",
        dict(encoding=ROPE, q_positions=at(0, 1, np.nan, 3, 4, dtype=np.float32)),
    ),
    "float segments": (TypeError, "q_segments has dtype float", dict(q_segments=np.zeros((B, T)))),
    "2**24 under RoPE": (ValueError, "16777216 … 2**24", dict(encoding=ROPE, q_positions=FAR)),
    "2**40": (ValueError, "2**31", dict(encoding=T5, q_positions=FAR * 2**16)),
    "a difference beyond int32": (
        ValueError,
        "q_positions … 2**30",
        dict(encoding=T5, q_positions=FAR * 2**6, k_positions=-FAR * 2**6),
    ),
}


@pytest.mark.parametrize("kind, message, options", FAULTS.values(), ids=list(FAULTS))
def test_attention_refuses(kind, message, options):
    refuses(kind, message, attention, **options)


@pytest.mark.parametrize("name", ("q_positions", "q_segments", "q_index"))
@given(shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=T))
def test_no_shape_is_broadcast(name, shape):
    assume(shape not in {(T,), (B, T)})
    refuses(
        ValueError, f"{name} has shape {list(shape)}", attention, **{name: np.zeros(shape, int)}
    )


def test_segments_need_the_batch_axes():
    refuses(ValueError, "q_segments has shape [5] … [2, 5]", attention, q_segments=np.zeros(T, int))


# A learned table ends.


def test_beyond_a_learned_table_is_an_error_or_nan_under_a_trace():
    table = jnp.asarray(util.noise(3, E))
    for outside in (-1, 3, 2**20):
        message = f"{outside} … length 3 … 0 <= position < 3"
        refuses(ValueError, message, learned.lookup, table, at(0, outside))
        found = jax.jit(learned.lookup)(table, at(0, outside))
        np.testing.assert_array_equal(np.isnan(found).all(-1), [False, True])
