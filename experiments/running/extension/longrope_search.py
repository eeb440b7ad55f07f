"""LongRoPE2's search for the factor of each frequency: arXiv 2502.20082, §3.2, Algorithms 1 and 2.

In theory the critical dimension is the first frequency that does not turn once within the trained
length. Long distances are rare in text, so the slowest frequencies that do turn may not have seen
their whole period either: there is a first candidate for each critical dimension from the first
frequency of at most ten turns on, with one factor of [s, 2·s] from there on. Round by round each of
the best has a child, whose factors from its critical dimension on are redrawn with probability 0.3
and sorted. Faster frequencies have the factors of a larger base (NTK), λ_i = λ_d^(i/d), or, unlike
in the paper's search, are unscaled (as in its YaRN-rcd, Table 5): so needles had the lowest loss in
a small model here.

The loss is that of the answers to questions about needles, hidden at several depths of texts of the
target length: the mean over all tokens hardly depends on what is far away (paper, Table 6; its
needles are all at the beginning). F frequencies, d the critical dimension, s the factor.
"""

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from experiments.running.schedule.work import Run, Runs, Work, Worker
from pe_jax.encodings.rope import RoPE, rotate
from pe_jax.encodings.terms import Rotation
from pe_jax.encodings.windowed import Windowed
from pe_jax.models.transformer import Transformer
from pe_jax.numerics import angles
from pe_jax.training.step import Trainer

PARENTS, MUTATION, REACH, TURNS = 8, 0.3, 2, 10
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


def with_factors(trainer: Trainer, gain: float) -> Trainer:
    """The trainer of a plain RoPE model for an Evaluator, with parameters (params, factors [F])."""

    def model(params: tuple[Any, jax.Array]) -> Transformer:
        built = trainer.model(params[0])
        set_factors(built, params[1], gain, lambda layer: isinstance(layer.encoding, RoPE))
        return built

    other, replicated = copy.copy(trainer), NamedSharding(trainer.mesh, PartitionSpec())
    other.model = model
    other.shardings = trainer.shardings._replace(params=(trainer.shardings.params, replicated))
    return other


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


def first(theta: np.ndarray, factor: float, length: int, rng: np.random.Generator) -> list:
    """What `complete` takes: equal factors for each critical dimension, without and with NTK."""
    turns, last = length * theta / (2 * math.pi), theta.size - 1
    early, late = (min(int((turns > n).sum()), last) for n in (TURNS, 1))
    return [
        (power, np.full(theta.size - d, rng.uniform(factor, REACH * factor)))
        for power in (0, 1)
        for d in range(early, late + 1)
    ]


def mutated(slow: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    """Some factors redrawn, all sorted."""
    drawn = rng.uniform(factor, REACH * factor, slow.size)
    return np.sort(np.where(rng.random(slow.size) < MUTATION, drawn, slow))


def complete(power: int, slow: np.ndarray, size: int) -> np.ndarray:
    """All factors [F], of those from the critical dimension on; before it 1, or NTK's (power 1)."""
    critical = size - slow.size
    return np.concatenate([slow[0] ** (power * np.arange(critical) / max(critical, 1)), slow])


def search(
    loss: Callable[[np.ndarray], float],
    theta: np.ndarray,
    factor: float,
    length: int,
    count: int,
) -> dict:
    """Tries at least `count` lists of factors, in whole rounds.

    `loss` is that of factors [F], and what it raises ends the search; `theta` are frequencies [F],
    the fastest first.

    Returns:
      The best `factors`, their `critical` dimension and `loss`, and all that were `tried`: (loss,
      critical dimension, power of `complete`, factors), best first.
    """
    rng, tried = np.random.default_rng(0), []
    candidates = first(theta, factor, length, rng)
    while len(tried) < count:
        for power, slow in candidates:
            factors = complete(power, slow, theta.size)
            critical = theta.size - slow.size
            tried.append((float(loss(factors)), critical, power, factors.tolist()))
        tried.sort(key=lambda each: (not math.isfinite(each[0]), each))  # NaN last
        candidates = [
            (power, mutated(np.array(factors[critical:]), factor, rng))
            for _, critical, power, factors in tried[:PARENTS]
        ]
    least, critical, _, factors = tried[0]
    return {"status": "ok", "factors": factors, "critical": critical, "loss": least, "tried": tried}


def needed(
    config: Any, search: Callable[[Worker], dict], driver: Any, steps: int = 0
) -> tuple[float, ...] | None:
    """The factors that methods of the config ask for; None if none does, or the search fails.

    All results in a workdir share them, also after runs are added.
    """
    if not any("{searched}" in spec for spec in config.encodings):
        return None

    def runs() -> Runs[dict]:
        file = Path(config.workdir) / "factors.json"
        (result,) = yield [Run("LongRoPE's search", file, steps, search)]
        return result

    factors = driver.run([Work("factors", [steps], runs())])["factors"].get("factors")
    return factors and tuple(factors)


def frequencies(rope: RoPE, dim: int) -> np.ndarray:
    """Of RoPE without its scaling: float64 [F]."""
    return angles.geometric(2 * rope.frequencies(dim).size, rope.base)
