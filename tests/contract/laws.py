"""The laws that every scheme obeys. A scheme put into `ENCODINGS` is tested here without a change.

Where a law does not apply, the scheme says so by what it declares (its terms, their horizons, its
claims, its limit) or by name, with the reason, in EXEMPT.
"""

import re

import jax.numpy as jnp
import pytest

from pe_jax.encodings.terms import DistanceFormula, DistanceTerm, PairBias, Rotation, ValueRotation
from tests import util
from tests.util import DIMS

# law → scheme → reason

EXEMPT: dict[str, dict[str, str]] = {
    "shift": {"xpos": "its positions end on both sides; test_xpos shifts within them"},
    "rotation": {
        "xpos": "it scales besides: norms change with the position",
        "pope": "it takes magnitudes of channels: norms change, once",
        "fope": "sums of waves are no rotation",
        "prope": "projections change norms; test_prope has the law of a common frame",
        "rayrope": "uncertain depths shrink; test_rayrope has the law of a common frame",
        "cayley_string": "R_0 is a basis; test_cayley_string has the law for two tokens",
        "rope_pp": "R_0 turns queries of imaginary heads; test_rope_pp has the law for two tokens",
        "liere": "larger generators do not commute; test_liere says when only differences count",
    },
    "parameters' gradients anywhere": {
        "rope_mixed": "a sum over tokens, each times its position: its rounding grows with them;"
        " test_rope_mixed compares it on images",
        "lerope": "as rope_mixed; test_lerope bounds it by the positions",
        "cayley_string": "as rope_mixed; test_cayley_string compares it on images",
        "liere": "as rope_mixed; test_liere compares it on images",
    },
    "groups": {
        "selective_rope": "key heads have slices of the input; test_selective_rope",
        "rope_inner": "key heads have slices of one series; test_naive has groups",
    },
    "alone": {
        "sink": "its logit takes a share where a token sees itself alone",
        "stick_breaking": "weights do not add up to 1; test_stick_breaking has its law",
    },
}

ENGINES = ("dense", "tiled")


def each(cases, law: str = "", quick=None):
    """Parametrises over the cases that a law is for; grouped, so that one worker compiles each.

    Those that are not in `quick`, if it is given, are slow.
    """
    free = set(EXEMPT.get(law, {}))
    cases = [c for c in cases if free.isdisjoint(re.split(r"[+(]", c.name))]
    params = []
    for c in cases:
        slow = [] if quick is None or c in quick else [pytest.mark.slow]
        params.append(pytest.param(c, id=c.name, marks=[pytest.mark.xdist_group(c.name), *slow]))
    return pytest.mark.parametrize("case", params)


FIRST = list({type(c.encoding): c for c in reversed(util.SINGLE)}.values())[::-1]  # one a scheme

ONE_AXIS = [c for c in util.CASES if c.encoding.claims.axes == 1]
# What follows from the kinds of terms alone is tested for these; the others are slow.
OF_KINDS = util.first_of_kinds(util.SINGLE) | {*util.SUMS}


def values(case, params, q, k, q_pos, k_pos):
    """What every term gives at positions [T]: of tokens [T, …], of pairs [H or 1, T, T, …].

    Each is a list, in the order of the terms.
    """
    wide = q.reshape(len(q), -1)
    apart = q_pos[:, None] - k_pos[None]
    of_queries, of_keys, pairs = [case.encoding.embed(params, wide, q_pos)], [], []
    for term in case.encoding.terms(params, DIMS):
        state = term.state if term.state is not None and term.state.of == "positions" else None
        if isinstance(term, Rotation) and term.state is not None:
            continue  # its angles are of the input, up to each token
        if isinstance(term, Rotation):
            of_queries.append(term.rotate("q", q, q_pos))
            of_keys.append(term.rotate("k", k, k_pos))
        elif isinstance(term, ValueRotation):
            of_queries.append(term.out(term.arrays, q, q_pos))
            of_keys.append(term.v(term.arrays, k, k_pos))
        elif isinstance(term, DistanceTerm | DistanceFormula):
            pairs.append(term.at(apart))
        elif isinstance(term, PairBias):
            pairs.append(term.fn(term.arrays, q_pos, k_pos))
        elif state is not None:
            states = (jnp.moveaxis(state(None, places), 1, 0)[None] for places in (q_pos, k_pos))
            pairs.append(term.scores(None, None, tuple(states))[0])
    return of_queries, of_keys, pairs
