"""What the conformance kit says of other people's JAX models (docs/conformance.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pe_jax import conformance

pytestmark = [
    pytest.mark.oracles,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of tunix
]

SIZES = {"num_layers": 2, "vocab_size": 64, "embed_dim": 32, "hidden_dim": 64, "num_heads": 4}
SIZES |= {"head_dim": 8, "num_kv_heads": 2, "norm_eps": 1e-5}


def llama(theta: float):
    """google-tunix's Llama 3 with this `rope_theta`, as a function for the kit."""
    tunix = pytest.importorskip("tunix.models.llama3.model")
    model = tunix.Llama3(tunix.ModelConfig(**SIZES, rope_theta=theta), rngs=nnx.Rngs(0))
    draws = jax.random.split(jax.random.key(0), 99)
    for key, (_, param) in zip(draws, nnx.to_flat_state(nnx.state(model, nnx.Param)), strict=False):
        shape = param[...].shape  # attention far from uniform
        scale, mean = (shape[0] ** -0.5, 0) if len(shape) > 1 else (0.3, 1)
        param[...] = mean + scale * jax.random.normal(key, shape)
    graph, state = nnx.split(model)
    run = jax.jit(lambda *args: nnx.merge(graph, state)(*args)[0])

    def logits(tokens, positions=None):
        index = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        positions = index if positions is None else positions
        seen = jnp.asarray(index[:, :, None] >= index[:, None, :])
        return run(jnp.asarray(tokens), jnp.asarray(positions), None, seen)

    return logits


def rows(report):
    return {row.probe: row for row in report.rows}


def test_tunix_does_not_pass_its_theta_on():
    """Its layers rotate by 10⁶ whatever the config says; released weights have 5·10⁵."""
    model = llama(5e5)
    told = conformance.check(model, "rope(base=5e5)*2", vocab=64, head_dim=8)
    found = rows(told)["frequencies"]
    assert not told.ok and found.verdict == "broken" and "base 1e+06" in found.cause
    right = conformance.check(model, "rope(base=1e6)*2", vocab=64, head_dim=8)
    assert right.ok, right
