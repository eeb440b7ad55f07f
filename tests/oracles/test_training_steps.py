"""The training steps that the benchmark compares are one: `make oracles`."""

import numpy as np
import pytest

from experiments.measuring import training_steps
from pe_jax.models.config import ModelConfig

pytestmark = pytest.mark.oracles
SIZE = training_steps.Size(ModelConfig(vocab=257, width=32, layers=2, heads=2), 3, 24)


@pytest.fixture(scope="module")
def ours(oracles) -> tuple[list[float], dict]:
    """Losses of three steps, and the weights after them."""
    return run("ours")


def run(library: str) -> tuple[list[float], dict]:
    running = training_steps.LIBRARIES[library](SIZE)
    losses = [float(running.step()) for _ in range(3)]
    return losses, running.weights()


def agree(first, second):
    (losses, weights), (other_losses, other_weights) = first, second
    np.testing.assert_allclose(losses, other_losses, rtol=2e-6)
    assert losses[2] < losses[1] < losses[0]  # it does learn
    assert weights.keys() == other_weights.keys()
    for name, w in weights.items():
        np.testing.assert_allclose(w, other_weights[name], atol=5e-5, err_msg=name)


def test_plain_jax_makes_our_step(ours):
    agree(ours, run("jax"))


@pytest.mark.parametrize("library", ["torch", "torch.compile"])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch.compile's own imports
def test_torch_makes_our_step(ours, library):
    agree(ours, run(library))
