"""What rows carry in tiles that are visited from the right: CoPE, GRAPE-AP, stick-breaking, PaTH.

tests/test_engine_matrix.py holds them to the dense engine.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.terms import RowSum, rows
from pe_jax.encodings.terms.rows import suffix_sums
from pe_jax.engines.tiled import Tiled, TileSizes
from tests import util
from tests.calls import TILES, outcomes
from tests.util import DIMS, E, H, K, assert_close, noise


@pytest.mark.parametrize("spec", ["stick_breaking", "grape_ap"])
def test_rows_are_left_where_nothing_more_can_matter(spec, monkeypatch):
    """Sharp gates: the stick is used up, or the way back too dear, after a few keys."""
    visited = []
    row = RowSum.row

    def spy(self, *args):
        jax.debug.callback(lambda: visited.append(1))
        return row(self, *args)

    jax.clear_caches()  # of calls of the same shapes
    monkeypatch.setattr(RowSum, "row", spy)
    (encoding,) = pe_jax.parse(spec)
    params, x = util.random_params(encoding), noise(1, 640, H * E, seed=7)
    qkv = [0.3 * noise(1, 640, n, E, seed=n) for n in (H, K, K)]
    f = functools.partial(pe_jax.attention, *qkv, encoding=encoding, params=params, x=x)
    got = f(implementation=Tiled(TileSizes(16, 16, group=(1, 1))))
    jax.effects_barrier()
    tiles = H * 40 * 41 // 2  # that a causal mask shows
    assert 0 < len(visited) < 0.9 * tiles  # of GRAPE-AP; of stick-breaking a quarter
    assert_close(got, f(implementation="dense"), 1e-6)


@pytest.mark.parametrize("ids", [None, np.repeat([0, 1], [312, 8])], ids=["whole", "packed"])
def test_beyond_the_limit_no_gates_are_computed(monkeypatch, ids):
    """Of each row of tiles the two or three next to the diagonal, whatever begins in it."""
    sums, gates, row = [], [], RowSum.row

    def spy_sums(self, *args):
        jax.debug.callback(lambda: sums.append(1))
        return row(self, *args)

    def spy_gates(x, own):
        jax.debug.callback(lambda: gates.append(1))
        return suffix_sums(x, own)

    jax.clear_caches()  # of calls of the same shapes
    monkeypatch.setattr(RowSum, "row", spy_sums)
    monkeypatch.setattr(rows, "suffix_sums", spy_gates)
    call = {"spec": "cope(positions=6)", "length": 320, "lse": False}
    call |= {} if ids is None else {"q_segments": np.tile(ids, (2, 1))}
    (got,) = outcomes(["tiles"], **call)
    jax.effects_barrier()
    groups, tiles = 2 * (H // 2), 20 * 21 // 2
    assert 0 < len(gates) <= 3 * groups * 2 * 20  # forward, sums for the backward pass, backward
    assert len(sums) <= groups * (2 * tiles + 3 * 20)  # those sums are collected to the limit alone
    monkeypatch.undo()
    assert_close([got], outcomes(["dense"], **call), 2e-5)


def test_long_rows_are_the_whole_row():
    """Vectors on a line and no last one in reach: between others CoPE's gradient has jumps."""
    encoding, length = pe_jax.make("cope", positions=700), 700
    line = np.linspace(-1, 1, 700, dtype=np.float32)[:, None] * noise(E, seed=3)
    qkv = [noise(1, length, n, E, seed=n) for n in (H, K, K)]

    def run(engine, vectors, *qkv):
        params = pe_jax.Params({}, {"vectors": vectors})
        out = pe_jax.attention(*qkv, encoding=encoding, params=params, implementation=engine)
        return (out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)).sum()

    grads = [
        util.jit(jax.grad(functools.partial(run, engine), (0, 1, 2, 3)))(jnp.asarray(line), *qkv)
        for engine in (Tiled(TileSizes(128, 64, group=(1, 2))), "dense")
    ]
    assert_close(*grads, 4e-5)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("columns", [1, 13, 64, 96])
def test_suffix_sums(columns, own):
    x = noise(2, 3, columns)
    want = np.cumsum(x[..., ::-1].astype(np.float64), -1)[..., ::-1] - (0 if own else x)
    np.testing.assert_allclose(suffix_sums(jnp.asarray(x), own), want, atol=1e-5)


def test_memory_grows_with_the_length_and_not_with_its_square():
    """Of the backward pass, of every scheme; scores of all pairs would take 4 times as much."""
    for spec in ("cope(positions=6)+grape_ap", "stick_breaking", "path"):
        (encoding,) = pe_jax.parse(spec)
        params = util.random_params(encoding)

        def loss(params, x, *qkv, encoding=encoding):
            how = {"encoding": encoding, "implementation": TILES, "params": params, "x": x}
            return (pe_jax.attention(*qkv, **how) ** 2).sum()

        def temporary(length, params=params, loss=loss):
            shapes = [(1, length, H * E), *((1, length, n, E) for n in (H, K, K))]
            args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
            program = jax.jit(jax.grad(loss, (0, 1, 2, 3, 4))).lower(params, *args).compile()
            return program.memory_analysis().temp_size_in_bytes

        assert temporary(2048) < 2.5 * temporary(1024), spec


def test_a_heads_share_of_a_sum_is_that_of_those_heads():
    (encoding,) = pe_jax.parse("grape_ap")
    (term,) = encoding.terms(util.random_params(encoding), DIMS)
    share = term.for_heads(lambda x, axis: jax.lax.slice_in_dim(x, 1, 3, axis=axis))
    assert type(share) is RowSum and share.arrays.shape == (2,)
