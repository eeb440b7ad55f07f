"""Values along the diagonals of a block: pair (a, b) reads number `offset - a + b`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.encodings.terms import diagonals
from pe_jax.encodings.terms.diagonals import Line, shear
from tests.util import assert_close, noise

HEADS, WIDTH = 2, 3
SHAPES = [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3)]
COUNTS = (1, 2, 5, 11)
OFFSETS = range(-9, 19)  # from before the first number to beyond the last one
CASES = list(itertools.product(COUNTS, OFFSETS))


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


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_numbers_of_rows_are_placed_as_a_gather_places_them(rows, columns):
    for n, offset in CASES:
        x = noise(HEADS, rows, n)
        got = Line(np.zeros((1, n)), offset).place(jnp.asarray(x), columns)
        index = np.clip(indices(n, offset, rows, columns), 0, n - 1)
        want = np.take_along_axis(x, np.broadcast_to(index, (HEADS, rows, columns)), -1)
        np.testing.assert_allclose(got, want if n > 1 else x, atol=1e-6, err_msg=f"{n}, {offset}")


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_of_hidden_pairs_beyond_the_last_number_anything_may_be_read(rows, columns):
    for n, offset in CASES:
        x = noise(HEADS, rows, n)
        got = Line(np.zeros((1, n)), offset, last=False).place(jnp.asarray(x), columns)
        index = indices(n, offset, rows, columns)
        want = np.take_along_axis(x, np.broadcast_to(np.clip(index, 0, n - 1), got.shape), -1)
        assert np.isfinite(got).all()
        visible = np.broadcast_to(index < n, got.shape)
        np.testing.assert_allclose(got[visible], want[visible], atol=1e-6, err_msg=f"{n}, {offset}")


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_biases_are_spread_over_all_pairs(rows, columns):
    for n, offset in CASES:
        values = noise(HEADS, n)
        got = Line(jnp.asarray(values), offset).spread(rows, columns)
        want = gathered(values, n, offset, rows, columns)
        np.testing.assert_array_equal(np.broadcast_to(got, want.shape), want, f"{n}, {offset}")


def test_biases_are_spread_in_the_same_way_on_every_device():
    x = noise(HEADS, 11)
    want = np.stack([x[:, 3 - r : 3 - r + 8] for r in range(4)], axis=-2)
    for how in (diagonals._by_slices, diagonals._by_shear):
        np.testing.assert_array_equal(how(jnp.asarray(x), rows=4), want)


def of_line(what: str, rows: int, columns: int, values, x, n: int, offset: int):
    """What a line gives, and what a gather does."""
    line, pairs = Line(values, offset), gathered(values, n, offset, rows, columns)
    pairs = jnp.broadcast_to(pairs, (HEADS, *pairs.shape[1:]))
    if what == "products":
        got = jnp.broadcast_to(line.products(x, columns), (*x.shape[:3], columns))
        return got, jnp.einsum("bhre,hrce->bhrc", x, pairs)
    if what == "reversed":
        got = jnp.broadcast_to(line.reversed().products(x, rows), (*x.shape[:3], rows))
        return got, jnp.einsum("bhce,hrce->bhcr", x, pairs)
    return line.average(x), jnp.einsum("bhrc,hrcf->bhrf", x, pairs)


@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("what", ["products", "reversed", "average"])
@pytest.mark.parametrize("rows, columns", [(1, 4), (4, 1), (3, 5), (5, 3)])
def test_vectors_of_all_pairs(what, heads, rows, columns):
    """Values and gradients of products, of those seen from the keys, and of averages."""
    shape = {"products": (rows, WIDTH), "reversed": (columns, WIDTH), "average": (rows, columns)}
    x = jnp.asarray(noise(2, HEADS, *shape[what], seed=1))

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def both(values, x, n, offset):
        def loss(which, values, x):
            y = of_line(what, rows, columns, values, x, n, offset)[which]
            return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum(), y

        return [
            jax.grad(functools.partial(loss, which), (0, 1), has_aux=True)(values, x)
            for which in (0, 1)
        ]

    for n, offset in itertools.product((1, 2, 6), (-6, -1, 0, 2, 4, 5, 8, 12)):
        got, want = both(jnp.asarray(noise(heads, n, WIDTH)), x, n, offset)
        assert_close(got, want, 1e-5)
