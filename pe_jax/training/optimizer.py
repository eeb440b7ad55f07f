"""The optimizer: AdamW with warm-up and cosine decay, and a separate rate for encodings."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from pe_jax.training import sharding
from pe_jax.training.config import OptimizerConfig


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate of each update, relative to its peak: linear warm-up, then cosine decay.

    The last update, the one after `steps` - 1 others, has the rate `final`, unless warm-up lasts
    until then.
    """
    if not config.warmup:  # optax would log that a warm-up of no steps is constant
        cosine = optax.cosine_decay_schedule(1.0, max(steps, 1), config.final)
    else:
        cosine = optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=1.0,
            warmup_steps=config.warmup,
            decay_steps=max(steps, config.warmup + 1),
            end_value=config.final,
        )
    if steps - 1 <= config.warmup:
        return cosine
    # The cosine ends one update later. A shorter one would change each update of published runs.
    return optax.join_schedules((cosine, optax.constant_schedule(config.final)), (steps - 1,))


def rates(config: OptimizerConfig) -> np.ndarray:
    """The learning rate at the peak, and its multiple for encodings: float32 [2]."""
    return np.asarray([config.learning_rate, config.encoding_rate], np.float32)


def is_encoding(name: str) -> bool:
    """Whether a parameter, by its `sharding.path_name`, belongs to an encoding."""
    return name.startswith("shared/") or "/attention/params/" in name


def optimizer(config: OptimizerConfig, steps: int, rates: Any) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay, after clipping by the global norm.

    The updates of encodings' parameters, which are not decayed, are multiplied by their rate.

    Args:
      config: the settings; its two rates are not read.
      steps: of the run.
      rates: see the function `rates`; may be traced, so that one program serves all rates.
    """
    peak, encoding_rate = rates
    relative = schedule(config, steps)

    def mask(predicate: Callable[[str], bool]) -> Callable[[Any], Any]:
        def select(path, _):
            return predicate(sharding.path_name(path))

        return functools.partial(jax.tree_util.tree_map_with_path, select)

    kernels = mask(lambda name: name.endswith("kernel"))
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            lambda count: peak * relative(count),
            config.b1,
            config.b2,
            weight_decay=config.weight_decay,
            mask=kernels,
        ),
        optax.masked(optax.scale(encoding_rate), mask(is_encoding)),
    )
