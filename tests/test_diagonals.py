"""Values along the diagonals of a block: pair (a, b) reads number `offset - a + b`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.encodings.terms import diagonals, repeat_heads
from pe_jax.encodings.terms.diagonals import Line, shear
from tests.util import assert_close, noise

HEADS, WIDTH = 2, 3
SHAPES = [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3)]
COUNTS = (1, 2, 5, 11)
OFFSETS = range(-9, 19)  # from before the first number to beyond the last one
CASES = list(itertools.product(COUNTS, OFFSETS))
FEW_OFFSETS = (-6, -1, 0, 2, 4, 5, 8, 12)


def indices(n: int, offset: int, rows: int, columns: int) -> np.ndarray:
    """Which number each pair reads, not clipped: [r, c]."""
    return offset - np.arange(rows)[:, None] + np.arange(columns)


def gathered(values, n: int, offset: int, rows: int, columns: int):
    """The values [H, n, …] of all pairs by definition: [H, r, c, …]."""
    return values[:, np.clip(indices(n, offset, rows, columns), 0, n - 1)]


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_shear_takes_diagonals(rows, columns):
    x = noise(2, rows, rows + columns - 1)
    want = [[x[:, r, rows - 1 - r + c] for c in range(columns)] for r in range(rows)]
    np.testing.assert_array_equal(shear(x), np.moveaxis(want, 2, 0))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("rows, columns", SHAPES)
def test_numbers_of_rows_are_placed_as_a_gather_places_them(rows, columns, last):
    """Not `last`: hidden pairs beyond the last number may read any number, but no NaN."""
    for n, offset in CASES:
        x = noise(HEADS, rows, n)
        index = indices(n, offset, rows, columns)
        got = Line(np.zeros((1, n)), offset, last).place(jnp.asarray(x), columns)
        want = np.take_along_axis(x, np.tile(np.clip(index, 0, n - 1), (HEADS, 1, 1)), -1)
        got, seen = np.broadcast_to(got, want.shape), np.tile(last | (index < n), (HEADS, 1, 1))
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got[seen], want[seen], atol=1e-6, err_msg=f"{n}, {offset}")


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_numbers_that_all_pairs_share_are_held_once(rows, columns):
    for n, offset in CASES:
        index = np.clip(indices(n, offset, rows, columns), 0, n - 1)
        x, alike = jnp.zeros((HEADS, rows, n)), index.min() == index.max()
        line = Line(jnp.zeros((HEADS, n)), offset)
        shared = line.place(x, columns).shape, line.spread(rows, columns).shape
        want = ((HEADS, rows, 1), (HEADS, 1, 1)) if alike else ((HEADS, rows, columns),) * 2
        assert shared == want, f"{n}, {offset}"


@pytest.mark.parametrize("hides", [None, -1e9, -np.inf])
@pytest.mark.parametrize("rows, columns", SHAPES)
def test_biases_are_spread_over_all_pairs(rows, columns, hides):
    """To the bit: one that hides what is far leaves what is near as it is."""
    for n, offset in CASES:
        values = noise(HEADS, n)
        values[:, 0] = values[:, 0] if hides is None else hides
        got = Line(jnp.asarray(values), offset).spread(rows, columns)
        want = gathered(values, n, offset, rows, columns)
        np.testing.assert_array_equal(np.broadcast_to(got, want.shape), want, f"{n}, {offset}")


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_gradients_of_spread_biases_are_those_of_a_gather(rows, columns):
    d = jnp.asarray(noise(HEADS, rows, columns, seed=1))

    @functools.partial(jax.jit, static_argnums=1)
    def both(values, offset):
        def of_line(values):
            return (d * Line(values, offset).spread(rows, columns)).sum()

        def by_gather(values):
            return (d * gathered(values, values.shape[1], offset, rows, columns)).sum()

        return jax.grad(of_line)(values), jax.grad(by_gather)(values)

    for n, offset in itertools.product((1, 2, 6), FEW_OFFSETS):
        assert_close(*both(jnp.asarray(noise(HEADS, n)), offset), 1e-5)


def test_biases_are_spread_in_the_same_way_on_every_device():
    x = noise(HEADS, 11)
    want = np.stack([x[:, 3 - r : 3 - r + 8] for r in range(4)], axis=-2)
    for how in (diagonals._by_slices, diagonals._by_shear):
        np.testing.assert_array_equal(how(jnp.asarray(x), rows=4), want)


def of_line(what: str, rows: int, columns: int, values, x, n: int, offset: int, last: bool):
    """What a line gives, and what a gather does, in both zero for pairs that are hidden."""
    line, pairs = Line(values, offset, last), gathered(values, n, offset, rows, columns)
    pairs = jnp.broadcast_to(pairs, (HEADS, *pairs.shape[1:]))
    seen = last | (indices(n, offset, rows, columns) < n)
    if what == "average":
        return line.average(seen * x), jnp.einsum("bhrc,hrcf->bhrf", seen * x, pairs)
    if what == "products":
        got, want = line.products(x, columns), jnp.einsum("bhre,hrce->bhrc", x, pairs)
    else:
        k = repeat_heads(x, HEADS)
        got, want = line.key_products(x, HEADS, rows), jnp.einsum("bhce,hrce->bhrc", k, pairs)
    return seen * jnp.broadcast_to(got, want.shape), seen * want


@pytest.mark.parametrize("heads, last", [(1, True), (HEADS, True), (HEADS, False)])
@pytest.mark.parametrize("what", ["products", "products of keys", "average"])
@pytest.mark.parametrize("rows, columns", [(1, 4), (4, 1), (3, 5), (5, 3)])
def test_vectors_of_all_pairs(what, heads, last, rows, columns):
    """Values and gradients of products, of those of keys, and of averages."""
    shape = {
        "products": (HEADS, rows, WIDTH),
        "products of keys": (1, columns, WIDTH),  # all heads share a key head
        "average": (HEADS, rows, columns),
    }
    x = jnp.asarray(noise(2, *shape[what], seed=1))

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def both(values, x, n, offset):
        def loss(which, values, x):
            y = of_line(what, rows, columns, values, x, n, offset, last)[which]
            return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum(), y

        return [
            jax.grad(functools.partial(loss, which), (0, 1), has_aux=True)(values, x)
            for which in (0, 1)
        ]

    for n, offset in itertools.product((1, 2, 6), FEW_OFFSETS):
        got, want = both(jnp.asarray(noise(heads, n, WIDTH)), x, n, offset)
        assert_close(got, want, 1e-5)
