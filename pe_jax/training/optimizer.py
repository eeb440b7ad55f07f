"""The optimizer: AdamW with warm-up and cosine decay, and a separate rate for encodings."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from pe_jax.training import sharding
from pe_jax.training.config import OptimizerConfig


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate of each update: linear warm-up, then cosine decay."""
    peak = config.learning_rate
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if config.warmup else peak,
        peak_value=peak,
        warmup_steps=config.warmup,
        decay_steps=max(steps, config.warmup + 1),
        end_value=peak * config.final,
    )


def is_encoding(name: str) -> bool:
    """Whether a parameter, by its `sharding.path_name`, belongs to an encoding."""
    return name.startswith("shared/") or "/attention/params/" in name


def optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay, after clipping by the global norm.

    The updates of encodings' parameters, which are not decayed, are multiplied by `encoding_rate`.
    """

    def mask(predicate: Callable[[str], bool]) -> Callable[[Any], Any]:
        def select(path, _):
            return predicate(sharding.path_name(path))

        return functools.partial(jax.tree_util.tree_map_with_path, select)

    rate, decay = schedule(config, steps), config.weight_decay
    kernels = mask(lambda name: name.endswith("kernel"))
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(rate, config.b1, config.b2, weight_decay=decay, mask=kernels),
        optax.masked(optax.scale(config.encoding_rate), mask(is_encoding)),
    )
