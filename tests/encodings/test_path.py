"""PaTH attention against arXiv 2505.16381."""

import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines import dispatch
from pe_jax.engines.tiled import Tiled, TileSizes
from pe_jax.naive import contextual
from tests import util
from tests.calls import equations, outcomes
from tests.encodings.common import (
    DIMS,
    HEAD_DIM,
    HEADS,
    LENGTH,
    WIDTH,
    attend,
    average,
    float64,
    qkv,
    random_params,
    row,
)
from tests.test_engines import intermediates
from tests.util import assert_close

PATH = pe_jax.make("path")
X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_its_forget_gate_is_fox():
    (both,) = pe_jax.parse("path+fox")
    params, (q, k, v) = random_params(both), qkv()
    first, second = map(float64, params.layer)
    scores = contextual.path(row(x=X), **first)
    forgotten = contextual.fox(row(x=X), **second) - naive.rows.products(row())
    got = attend(q, k, v, both, params, x=X)
    np.testing.assert_allclose(got, average(scores + forgotten, True), atol=1e-5)


def test_tokens_of_another_document_map_nothing():
    q, k, v = qkv()
    params, ids, loud = random_params(PATH), np.asarray([0, 1] * 5 + [0]), X.copy()
    loud[1::2] = 3 - loud[1::2]
    for x in (X, loud):
        got = attend(q, k, v, PATH, params, x=x, q_segments=ids)[::2]
        alone = attend(q[::2], k[::2], v[::2], PATH, params, x=X[::2])
        np.testing.assert_allclose(got, alone, atol=1e-5)


@pytest.mark.parametrize("side", [48, 128, 192])
def test_tiles_of_several_chunks_are_the_whole_row(side):
    """Chunks of 48, 64 and 48 tokens, once and twice doubled; documents end in them or between."""
    ids = np.repeat([[0, 1, 2, 3, -1], [4, 4, 4, 4, 5]], [64, 5, 127, 90, 14], axis=1)
    call = {"spec": "path", "length": 300, "q_segments": ids}
    tiles = Tiled(TileSizes(side, side, group=(1, 2)))
    assert_close(*outcomes([tiles, "dense"], **call), 2e-5)


def test_later_keys_are_refused_and_tokens_in_another_order_are_dense(caplog):
    dispatch._log.cache_clear()
    q, x = jnp.zeros((1, 600, HEADS, HEAD_DIM)), jnp.zeros((1, 600, WIDTH))
    given = {"encoding": PATH, "params": random_params(PATH), "x": x}
    with pytest.raises(ValueError, match="PaTH is for causal attention alone"):
        pe_jax.attention(q, q, q, **given, causal=False)
    with caplog.at_level(logging.INFO, "pe_jax"):
        for order in ({}, {"q_index": np.arange(600), "k_index": np.arange(600)}):
            jax.eval_shape(lambda q, order=order: pe_jax.attention(q, q, q, **given, **order), q)
    assert caplog.messages[0] == "attention: PaTH: tiled"
    assert "PaTH: dense, O(L²) memory: in tiles queries and keys must be" in caplog.messages[1]
    for engine in ("tiled", Tiled()):
        with pytest.raises(ValueError, match="in tiles: queries and keys must be.*'dense'"):
            pe_jax.attention(q, q, q, **given, **order, implementation=engine)


def test_a_long_prompt_maps_the_keys_in_parts_and_drafts_that_are_taken_back_map_none():
    """Three documents; nothing is as large as all pairs of tokens."""
    rng, dims = np.random.default_rng(7), pe_jax.Dims(WIDTH, HEADS, HEADS, HEAD_DIM)
    q, k, v = rng.standard_normal((3, 1, 160, HEADS, HEAD_DIM), np.float32)
    x, ids = rng.standard_normal((1, 160, WIDTH), np.float32), np.arange(160)[None] // 70
    given = {"encoding": PATH, "params": random_params(PATH), "dims": dims}
    tokens = {"q": q, "k": k, "v": v, "x": x, "segments": ids}

    def run(held, first, end):
        part = {name: array[:, first:end] for name, array in tokens.items()}
        return pe_jax.cache.extend(held, **part, **given, positions=np.arange(first, end))

    @util.jit
    def decode(held):
        out, held = run(held, 0, 150)
        _, drafts = run(held, 152, 156)
        outs = [out]
        held = pe_jax.cache.truncate(drafts, 150)
        for n in range(150, 153):
            out, held = run(held, n, n + 1)
            outs.append(out)
        return jnp.concatenate(outs, 1)

    empty = pe_jax.cache.empty(PATH, 1, 512, dims)
    want = pe_jax.attention(q, k, v, x=x, q_segments=ids, **given, implementation="dense")
    assert_close(decode(empty), want[:, :153], 2e-5)
    shapes = intermediates(jax.make_jaxpr(lambda held: run(held, 0, 150))(empty).jaxpr)
    assert max(math.prod(shape) for shape in shapes) < 150 * 512
    for name in ("x", "segments"):
        part = {n: array[:, :150] for n, array in tokens.items()} | {name: tokens[name]}
        with pytest.raises(ValueError, match=rf"{name} has shape \[1, 160.*; pass \[1, 150"):
            pe_jax.cache.extend(empty, **part, **given)


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_a_rotation_that_adds_channels_is_refused_with_their_numbers(engine):
    (both,) = pe_jax.parse("path+pope")
    given = {"encoding": both, "params": random_params(both), "x": X, "implementation": engine}
    with pytest.raises(ValueError, match="channels=12: PathProduct reads 6: leave out"):
        pe_jax.attention(*qkv(), **given)


def test_what_rows_carry_is_multiplied_in_float32_on_any_device():
    """By default GPUs and TPUs round it, tile after tile."""
    (term,), rows = PATH.terms(random_params(PATH), DIMS), jnp.ones((1, 2, 4, HEAD_DIM))
    tokens = Tokens(jnp.arange(4)[None], jnp.arange(4)[None])
    sides = [Side(rows, None, (), tokens)] * 2
    states = (rows, jnp.ones((1, 2, 4, 4))), (rows, jnp.ones((1, 2, 1, HEAD_DIM**2)))

    def carried(states, before):
        return term.in_tiles(None).row(*sides, states, None, None, before)

    def both(*operands):
        out, pull = jax.vjp(carried, *operands)
        return pull(out)

    products = list(equations(jax.make_jaxpr(both)(states, rows).jaxpr, "dot_general"))
    exact = (jax.lax.Precision.HIGHEST,) * 2
    assert products and {equation.params["precision"] for equation in products} == {exact}
