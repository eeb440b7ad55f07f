"""PyTorch's attention in the benchmark computes what ours does: `make oracles`."""

import jax
import numpy as np
import pytest

import pe_jax
from experiments.measuring import workloads

pytestmark = pytest.mark.oracles
SIZES = workloads.Sizes(2, 4, 16, "float32", True)


def run(engine, name, backward, length=96):
    operands = [workloads.normal(2, length, 4, 16, seed=s) for s in range(4)]
    build = workloads._in_torch if engine in workloads.IN_TORCH else workloads._attention
    found = build(engine, SIZES, operands, name, length, backward).run()
    return [np.asarray(x) for x in jax.tree.leaves(found)]


@pytest.mark.parametrize("name", ["nope", "alibi", "t5", "kerple"])
def test_sdpa_is_ours_forward_and_backward(oracles, name):
    (want,), (got,) = run("dense", name, False), run("sdpa", name, False)
    np.testing.assert_allclose(got.swapaxes(1, 2), want, atol=2e-5)
    wanted, found = run("dense", name, True)[-3:], run("sdpa", name, True)
    for a, b in zip(found, wanted, strict=False):  # the gradient of a bias is by distance
        np.testing.assert_allclose(a.swapaxes(1, 2), b, atol=1e-4)
    learned = bool(jax.tree.leaves(pe_jax.parse(name)[0].init(jax.random.key(0), SIZES.dims)))
    assert len(found) == 3 + learned
