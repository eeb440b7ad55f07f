"""LongRoPE's search for the factor of each frequency: arXiv 2402.13753, §3.2 and Algorithm 1.

The first candidates are position interpolation, NTK and YaRN, as in the paper. Then, round by
round, the best become parents: one half of the children are mutated, each factor redrawn from
[1, 1.25·s] with probability 0.3, the other half takes each factor from one of two parents. Factors
rise with the wavelength: children are sorted (the paper discards those that are not monotone).
The loss is that of one batch of training rows at the target length. F frequencies, s the factor.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pe_jax.encodings.rope import RoPE, rotate
from pe_jax.encodings.rope_scaling import NTK, Linear, YaRN
from pe_jax.encodings.terms import Rotation
from pe_jax.encodings.windowed import Windowed
from pe_jax.models.transformer import Transformer
from pe_jax.numerics import angles
from pe_jax.training.step import Trainer, mean_loss

PARENTS, CHILDREN = 8, 8
MUTATION, REACH = 0.3, 1.25
FAILED = "LongRoPE's search failed"  # why no method runs that needs its factors


@dataclasses.dataclass(frozen=True)
class Free(RoPE):
    """RoPE whose factors are parameters, so that one compiled program tries every list of them."""

    gain: float = 1.0

    def init_layer(self, key, dims):
        """Factors [F] of 1."""
        return {"factors": jnp.ones_like(self.frequencies(dims.head_dim))}

    def terms(self, params, dims):
        return (Rotation(self.divided, self.divided, params.layer["factors"]),)

    def divided(self, factors, x, positions):
        """R_m x by θ_i / factor_i."""
        theta = self.frequencies(x.shape[-1]) / factors
        return rotate(x, positions, theta, self.layout, self.gain)


def losses(trainer: Trainer, gain: float) -> Callable:
    """A compiled (params, factors [F], batch) → mean loss, for a trainer of a plain RoPE model."""

    def loss(params, factors, batch):
        model = trainer.model(params)
        set_factors(model, factors, gain, lambda layer: isinstance(layer.encoding, RoPE))
        return mean_loss(model, batch, None, None, trainer.layout)

    return jax.jit(loss)


def set_factors(
    model: Transformer, factors: jax.Array, gain: float, extends: Callable[[Windowed], bool]
) -> None:
    """Divides the frequencies of RoPE by factors [F], in the layers that are extended."""
    for block, layer in zip(model.blocks, model.encodings, strict=True):
        if extends(layer):
            rope: Any = layer.encoding
            fields = {f.name: getattr(rope, f.name) for f in dataclasses.fields(RoPE)}
            free = Free(**{**fields, "scaling": None}, gain=gain)
            block.attention.encoding = dataclasses.replace(layer, encoding=free)
            repeats = model.config.layers // len(model.blocks)
            params = {"factors": nnx.Param(jnp.tile(factors, (repeats, 1)))}
            block.attention.params = nnx.data(params)


def first(rope: RoPE, dim: int, factor: float, length: int) -> list[np.ndarray]:
    """Position interpolation, NTK and YaRN as factors: float64 [F] each."""
    theta = angles.geometric(2 * rope.frequencies(dim).size, rope.base)
    scalings = Linear(factor), NTK(factor), YaRN(factor, length)
    return [theta / scaling(theta, rope.base) for scaling in scalings]


def children(parents: list[np.ndarray], factor: float, rng: np.random.Generator) -> list:
    """`CHILDREN` mutated or crossed lists of factors, sorted."""
    size = parents[0].size
    offspring = []
    for k in range(CHILDREN):
        mother, father = (parents[i] for i in rng.integers(len(parents), size=2))
        if k % 2:
            child = np.where(rng.random(size) < 0.5, mother, father)
        else:
            drawn = rng.uniform(1, max(REACH * factor, 1), size)
            child = np.where(rng.random(size) < MUTATION, drawn, mother)
        offspring.append(np.sort(child))
    return offspring


def search(
    loss: Callable[[np.ndarray], float],
    start: list[np.ndarray],
    factor: float,
    count: int,
    go_on: Callable[[], bool],
) -> list[tuple[float, list[float]]]:
    """Tries at least `count` lists of factors, in whole rounds.

    Args:
      loss: of a list of factors.
      start: the first candidates.
      factor: s.
      count: how many to try.
      go_on: called before each; False ends the search.

    Returns:
      (loss, factors) of all lists tried, best first.
    """
    rng, tried, waiting = np.random.default_rng(0), [], list(start)
    while waiting and go_on():
        factors = waiting.pop(0)
        tried.append((float(loss(factors)), factors.tolist()))
        if not waiting and len(tried) < count:
            best = sorted(tried)[:PARENTS]
            waiting = children([np.asarray(x) for _, x in best], factor, rng)
    return sorted(tried)
