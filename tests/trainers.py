"""Trainers of tiny models, and what runs of the training program share."""

import dataclasses
import functools
import os
import signal
import time

import jax
import numpy as np
import pytest

from experiments.running.training import training_loop as program
from pe_jax.models.config import ModelConfig
from pe_jax.training import optimizer as optimizers
from pe_jax.training import sharding
from pe_jax.training.config import MeshConfig, OptimizerConfig
from pe_jax.training.step import State, Trainer
from tests import tiny

STEPS = 150
OPTIMIZER = OptimizerConfig(warmup=1, learning_rate=0.01)


@functools.cache
def trainer(spec: str, devices: int = 1, positions: str = "contiguous") -> Trainer:
    """The program of a tiny model on one device, or on all eight."""
    config = MeshConfig(data=1) if devices == 1 else MeshConfig(data=2, fsdp=2, model=2)
    mesh = sharding.make_mesh(config, jax.devices()[:devices])
    return Trainer(tiny.config(spec), OPTIMIZER, STEPS, mesh, positions)


def start(trainer: Trainer, config: OptimizerConfig | None = None) -> State:
    """A state of noise, laid out as the trainer wants it, with the rates of `config` or its own."""
    params = tiny.like(trainer.shapes)
    shapes = trainer.state_shapes.opt_state
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    rates = optimizers.rates(config or trainer.optimizer_config)
    return jax.device_put(
        State(params, zeros, rates, np.int32(0), np.zeros(2, np.int32)), trainer.shardings
    )


def steps(trainer: Trainer, count: int = 1, batch=None) -> tuple[State, list[list[float]]]:
    """The state after some steps, and loss and gradient norm of each."""
    state, found = start(trainer), []
    for k in range(count):
        rows = tiny.batch(k) if batch is None else batch
        state, metrics = trainer.step(state, trainer.put(rows), np.int32(0))
        found.append([float(metrics.loss), float(metrics.gradient_norm)])
    return state, found


def loss_at(trainer: Trainer, step: int, seed: int) -> float:
    """The loss of a batch with these parameters of noise, as this step of a run with this seed."""
    state = start(trainer)._replace(step=jax.device_put(np.int32(step), trainer.shardings.step))
    return float(trainer.step(state, trainer.put(tiny.batch()), np.int32(seed))[1].loss)


# What a tiny sweep of short trainings has, of any kind.
TRIALS = {
    "seeds": 1,
    "batch": 8,
    "steps": 3,
    "log_every": 2,
    "workers": 1,
    "model": ModelConfig(width=16, layers=1, heads=2, causal=False),
    "optimizer": OPTIMIZER,
}


def interrupt() -> None:
    """SIGTERM, from the thread of a run."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)  # Python handles it in the main thread


def spoil(batch: dict) -> dict:
    """A batch whose loss is NaN: infinite weights, as of a reader gone wrong."""
    return {**batch, "weights": np.where(batch["weights"] > 0, np.float32(np.inf), 0)}


def at_step(patch, step: int, act) -> None:
    """Calls `act` while the step is under way."""
    put, count = Trainer.put, iter(range(1, 10**6))
    patch.setattr(Trainer, "put", lambda self, x: (next(count) == step and act(), put(self, x))[1])


def change(config, **fields):
    """A copy with some fields, nested ones as dicts."""
    fields = {
        name: dataclasses.replace(getattr(config, name), **x) if isinstance(x, dict) else x
        for name, x in fields.items()
    }
    return dataclasses.replace(config, **fields)


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """One device, and one compiled program for all runs that have the same settings."""
    with pytest.MonkeyPatch.context() as patch:
        make = sharding.make_mesh
        patch.setattr(
            sharding, "make_mesh", lambda c, devices=None: make(c, devices or jax.devices()[:1])
        )
        patch.setattr(program, "Trainer", functools.cache(Trainer))
        yield
