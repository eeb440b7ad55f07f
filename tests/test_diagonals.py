"""Values along the diagonals of a block: pair (a, b) reads number `offset - a + b`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.encodings.terms import diagonals
from pe_jax.encodings.terms.diagonals import Line, shear, shear_back
from pe_jax.numerics.arrays import repeat_heads
from tests import util
from tests.util import assert_close, noise

HEADS, WIDTH = 2, 3
SHAPES = [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3)]
COUNTS = (1, 2, 8)  # the last one more than the diagonals of a block


def cases(rows: int, columns: int) -> list[tuple[int, int]]:
    """How many numbers, and offsets from where all pairs read before them to beyond them."""
    return [(n, offset) for n in COUNTS for offset in range(-columns, n + rows)]


def indices(n: int, offset: int, rows: int, columns: int) -> np.ndarray:
    """Which number each pair reads, not clipped: [r, c]."""
    return offset - np.arange(rows)[:, None] + np.arange(columns)


def gathered(values, n: int, offset: int, rows: int, columns: int):
    """The values [H, n, …] of all pairs by definition: [H, r, c, …]."""
    return values[:, np.clip(indices(n, offset, rows, columns), 0, n - 1)]


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_shear_takes_diagonals(rows, columns):
    x = noise(2, rows, rows + columns)
    want = [[x[:, r, rows - 1 - r + c] for c in range(columns)] for r in range(rows)]
    np.testing.assert_array_equal(shear(x), np.moveaxis(want, 2, 0))


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_the_transpose_of_shear_and_its_gradient(rows, columns):
    """The same on every device."""
    x, y = noise(2, rows, rows + columns), noise(2, rows, columns, seed=1)
    n = rows + columns
    reads = indices(n, rows - 1, rows, columns)[..., None] == np.arange(n)  # [r, c, n]
    want = np.einsum("hrc,rcn->hrn", y, reads)
    for how in (shear_back, diagonals._back_by_rows, diagonals._back_at_once):
        np.testing.assert_array_equal(how(jnp.asarray(y)), want)
    np.testing.assert_array_equal(jax.vjp(shear, jnp.asarray(x))[1](jnp.asarray(y))[0], want)
    (d_y,) = jax.vjp(shear_back, jnp.asarray(y))[1](jnp.asarray(x))
    np.testing.assert_array_equal(d_y, shear(x))


PLACED = [(*shape, True) for shape in SHAPES] + [(*shape, False) for shape in SHAPES[3:]]


@pytest.mark.parametrize("rows, columns, last", PLACED)
def test_numbers_of_rows_are_placed_as_a_gather_places_them(rows, columns, last):
    """Not `last`: hidden pairs beyond the last number may read any number, but no NaN."""
    all_cases = cases(rows, columns)
    numbers = [noise(HEADS, rows, n) for n, _ in all_cases]

    def place(numbers):
        lines = [Line(jnp.zeros((1, n)), offset, last) for n, offset in all_cases]
        return [line.place(x, columns) for line, x in zip(lines, numbers, strict=True)]

    for case, x, got in zip(all_cases, numbers, util.jit(place)(numbers), strict=True):
        index, n = indices(*case, rows, columns), case[0]
        want = np.take_along_axis(x, np.tile(np.clip(index, 0, n - 1), (HEADS, 1, 1)), -1)
        got, seen = np.broadcast_to(got, want.shape), np.tile(last | (index < n), (HEADS, 1, 1))
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got[seen], want[seen], atol=1e-6, err_msg=f"{case}")


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_a_value_that_all_pairs_share_is_held_once(rows, columns):
    for n, offset in cases(rows, columns):

        def spread(values, offset=offset):
            return Line(values, offset).spread(rows, columns)[0]

        index = np.clip(indices(n, offset, rows, columns), 0, n - 1)
        pairs = (1, 1) if index.min() == index.max() else (rows, columns)
        got = jax.eval_shape(spread, jax.ShapeDtypeStruct((HEADS, n), jnp.float32))
        assert got.shape == (HEADS, *pairs), f"{n}, {offset}"


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_biases_are_spread_over_all_pairs(rows, columns):
    """To the bit: one that hides what is far leaves what is near as it is. Gradients too."""
    all_cases, d = cases(rows, columns), noise(HEADS, rows, columns, seed=1)

    def outcome(offset, values):
        def spread(values):
            return jnp.broadcast_to(Line(values, offset).spread(rows, columns)[0], d.shape)

        out, pull = jax.vjp(spread, values)
        return out, *pull(jnp.asarray(d))

    @util.jit
    def outcomes(values):
        return [outcome(offset, x) for x, (_, offset) in zip(values, all_cases, strict=True)]

    for far in (0.3, -1e9, -np.inf):
        values = [
            np.where(np.arange(n) == 0, np.float32(far), noise(HEADS, n)) for n, _ in all_cases
        ]
        for case, x, (got, d_x) in zip(all_cases, values, outcomes(values), strict=True):
            np.testing.assert_array_equal(got, gathered(x, *case, rows, columns), f"{case}")
            index = np.clip(indices(*case, rows, columns), 0, case[0] - 1)
            read = index[..., None] == np.arange(case[0])
            assert_close(d_x, np.einsum("hrc,rcn->hn", d, read))


def test_biases_are_spread_in_the_same_way_on_every_device():
    x = noise(HEADS, 11)
    want = np.stack([x[:, 3 - r : 3 - r + 8] for r in range(4)], axis=-2)
    for how in (diagonals._by_slices, diagonals._by_shear):
        np.testing.assert_array_equal(how(jnp.asarray(x), rows=4), want)


def of_line(what: str, line: Line, rows: int, columns: int, x):
    """What a line gives, and what a gather does, in both zero for pairs that are hidden."""
    values, offset, last = line
    index, n = indices(values.shape[1], offset, rows, columns), values.shape[1]
    pairs = gathered(values, n, offset, rows, columns)
    pairs, seen = jnp.broadcast_to(pairs, (HEADS, *pairs.shape[1:])), last | (index < n)
    if what == "average":
        return line.average(seen * x), jnp.einsum("bhrc,hrcf->bhrf", seen * x, pairs)
    if what == "products":
        got, want = line.products(x, columns), jnp.einsum("bhre,hrce->bhrc", x, pairs)
    else:
        k = repeat_heads(x, HEADS)
        got, want = line.key_products(x, HEADS, rows), jnp.einsum("bhce,hrce->bhrc", k, pairs)
    return seen * jnp.broadcast_to(got, want.shape), seen * want


@pytest.mark.parametrize("what", ["products", "products of keys", "average"])
@pytest.mark.parametrize(
    "rows, columns, heads, last",
    [(1, 4, 1, True), (3, 5, 1, True), (3, 5, HEADS, False), (5, 3, HEADS, False)],
)
def test_vectors_of_all_pairs(what, heads, last, rows, columns):
    """Values and gradients of products, of those of keys, and of averages."""
    shape = {
        "products": (HEADS, rows, WIDTH),
        "products of keys": (1, columns, WIDTH),  # all heads share a key head
        "average": (HEADS, rows, columns),
    }
    x = jnp.asarray(noise(2, *shape[what], seed=1))
    some = [(1, 0), *((2, offset) for offset in (-columns, -1, 0, 1, rows))]
    some += [(8, offset) for offset in (1 - columns, 0, rows, 6, 7 + rows)]
    values = [jnp.asarray(noise(heads, n, WIDTH)) for n, _ in some]

    def both(values, x):
        def outcome(which, offset, values):
            def f(values, x):
                return of_line(what, Line(values, offset, last), rows, columns, x)[which]

            y, pull = jax.vjp(f, values, x)
            return y, pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

        each = zip(values, some, strict=True)
        return [[outcome(which, offset, v) for which in (0, 1)] for v, (_, offset) in each]

    for got, want in util.jit(both)(values, x):
        assert_close(got, want)
