"""Laws of where a token is: shifts, rotations, the limit, positions that are real numbers."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

from pe_jax.encodings.terms import Rotation, select
from tests import util
from tests.contract.laws import EXEMPT, each, values
from tests.util import DIMS, B, E, H, T, assert_close

RELATIVE = [c for c in util.CASES if util.is_relative(c.encoding)]

ROTATIONS = [
    c
    for c in util.SINGLE
    for rotation in util.terms(c.encoding, Rotation)
    # two views are two rotations; tests of the scheme have angles from the input
    if rotation.q and rotation.k and rotation.views is None and rotation.state is None
]


@each(RELATIVE, "shift")
@given(st.data(), st.integers(-500, 500))
def test_a_relative_scheme_does_not_change_under_a_shift(case, data, shift):
    places = data.draw(util.positions(case, reach=500))
    there, here = (util.run(case, "tiled", positions=x) for x in (places + np.int32(shift), places))
    if case.name.partition("(")[0] in EXEMPT["parameters' gradients anywhere"]:
        there, here = ((out, rest) for out, (_, *rest) in (there, here))
    # a float32 angle errs by 2⁻²³·|position|, at most 1.2e-4 here, in q and in k
    assert_close(there, here, 5e-4)


@functools.cache
def rotation(case):
    def rotate(x, positions):
        params = util.random_params(case.encoding)
        (term,) = select(case.encoding.terms(params, DIMS), Rotation)
        return [term.rotate(side, x, positions) for side in "qk"]

    return util.jit(rotate)


@each(ROTATIONS, "rotation")
@given(st.data())
def test_a_rotation_keeps_norms_and_only_differences_count(case, data):
    m, n = (data.draw(util.positions(case, reach=500)) for _ in range(2))
    x, y = util.noise(B, T, H, E, seed=1), util.noise(B, T, H, E, seed=2)
    turn = rotation(case)
    (xm, _), (_, yn), (_, y_diff) = turn(x, m), turn(y, n), turn(y, n - m)
    norm = functools.partial(np.linalg.norm, axis=-1)
    assert_close(norm(xm), norm(x), 1e-6)
    assert_close((xm * yn).sum(-1), (x * y_diff).sum(-1), 5e-4)  # x·R(m)ᵀR(n)y


@each(util.SINGLE)
def test_the_limit_is_where_positions_end(case):
    enc, limit = case.encoding, case.encoding.limit()
    params = util.random_params(enc)

    @util.jit
    def used(place):
        places = jnp.broadcast_to(place, (1, enc.claims.axes)[: 1 + (enc.claims.axes > 1)])
        x = jnp.ones((1, H, E))
        return values(case, params, x, x, places, jnp.zeros_like(places))

    def finite(place):
        return all(np.isfinite(x).all() for x in jax.tree.leaves(used(np.int32(place))))

    assert finite(0) and finite(2**24 - 1 if limit is None else limit - 1)
    if limit is not None:  # of distances, as many are defined on either side
        below = -limit if util.is_relative(enc) else -1
        assert not finite(limit) and not finite(below)


@each([c for c in util.SINGLE if c.encoding.claims.real_positions])
def test_whole_float32_positions_are_integers(case):
    params, q = util.random_params(case.encoding), util.noise(T, H, E)
    first = -3 if case.encoding.limit() is None else 0
    places = util.spread(case, np.arange(first, T + first, dtype=np.int32))
    args = [x.astype(t) for t in (np.int32, np.float32) for x in (places, places[::-1])]
    ints, reals = util.jit(
        lambda a, b, c, d: [values(case, params, q, q, *x) for x in ((a, b), (c, d))]
    )(*args)
    assert_close(reals, ints, 1e-6)
