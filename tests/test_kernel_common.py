"""What the kernels of both devices share: which calls they refuse, and how terms add up."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import abstract_terms
from pe_jax.encodings.terms import DistanceBias, DistanceFormula, Scale
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import common
from pe_jax.engines.kernels.gpu import engine as gpu
from pe_jax.engines.kernels.tpu import engine as tpu
from tests.util import DIMS, H, noise


def refusal(kernel, spec, **options):
    """Why kernels do not run a scheme, whatever the operands."""
    terms = abstract_terms(*pe_jax.parse(spec), DIMS)
    side: Any = None
    return kernel.refusal(AttentionSpec(DIMS, True, **options), terms, side, side, side)


@pytest.mark.parametrize("spec, why", [("dape", "it has no PairRescore")])
def test_kernels_refuse_what_they_do_not_know(spec, why):
    assert refusal(gpu, spec) == refusal(tpu, spec) == why


def test_those_for_tpus_have_no_bands_of_distances():
    """Those for GPUs have: tests/test_engine_matrix.py."""
    views = refusal(tpu, "alibi+rerope")
    assert views == "it has no Rotation with several views of each token"
    assert refusal(tpu, "nope", window=4, sinks=1) == "it has no attention sinks of a window"


def test_those_for_tpus_have_no_maps_between_tokens():
    """Those for GPUs have: tests/test_engine_matrix.py."""
    assert refusal(tpu, "path") == "it has no PathProduct"


def table(rows, distance):
    return rows[:, jnp.clip(distance, -2, 2) + 2]


def line(numbers, distance):
    return numbers[0] * distance


def parabola(numbers, distance):
    return numbers[0] * distance + numbers[1] * distance**2


NUMBERS = noise(H, 3)
PROFILES = (
    DistanceFormula(line, NUMBERS[:, :1]),
    Scale(0.5),
    DistanceFormula(parabola, NUMBERS[:, 1:]),
)
DISTANCE = np.arange(-5, 6)


def test_profiles_add_up_and_each_takes_its_own_numbers():
    total = common.formula_sum(PROFILES)
    assert total and not common.formula_sum(()) and common.coefficients(()) is None
    numbers = common.coefficients(PROFILES)
    assert numbers is not None
    want = PROFILES[0].at(DISTANCE) + PROFILES[2].at(DISTANCE)
    for head, columns in enumerate(numbers):
        np.testing.assert_allclose(total(list(columns), distance=DISTANCE), want[head], rtol=1e-6)
    again = (DistanceFormula(line, 2 * NUMBERS[:, :1]), DistanceFormula(parabola, NUMBERS[:, 1:]))
    assert common.formula_sum(again) == total  # static: numbers do not count


def test_tables_add_up_each_with_the_scale_or_without():
    near, far = ({"horizon": (-2, 2)}, {"horizon": (-9, 1), "scaled": True})
    rows = noise(H, 5), noise(H, 5, seed=1)
    terms = (DistanceBias(table, rows[0], **near), DistanceBias(table, rows[1], **far))
    want = table(rows[0], DISTANCE) + 0.5 * table(rows[1], DISTANCE)
    np.testing.assert_allclose(common.distance_bias(terms, DISTANCE, 0.5), want, rtol=1e-6)
    assert common.distance_bias(PROFILES, DISTANCE, 0.5) is None
    assert common.horizon((*terms, *PROFILES)) == (-9, 2)
    assert common.horizon((*terms, DistanceBias(table, rows[0]))) is None
    assert common.horizon(PROFILES) is None
