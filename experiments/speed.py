"""Speed and memory of a training step and of an evaluation, all schemes interleaved.

Memory is the compiler's figure for the step's temporaries; see timing.py for the rest.
"""

import jax
import numpy as np

from experiments import timing
from pe_jax.training.config import CompareConfig
from pe_jax.training.evaluate import Evaluator


def measure(config: CompareConfig, evaluators: dict[str, Evaluator]) -> dict:
    """Milliseconds a step by scheme and round, and bytes of temporaries."""
    rng = np.random.default_rng(0)
    shape = (config.batch, config.length + 1)
    vocab = min(e.trainer.config.vocab for e in evaluators.values())
    tokens = rng.integers(0, vocab, shape, dtype=np.int32)
    batch = {
        "tokens": tokens,
        "segments": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
        "weights": np.ones(shape, np.float32),
    }
    found, programs = {}, {}
    for name, evaluator in evaluators.items():
        memory = evaluator.trainer.compile(config.batch, config.length).memory_analysis()
        found[name] = {
            "train_temp_bytes": memory.temp_size_in_bytes,
            "compile_seconds": evaluator.trainer.compile_seconds,
        }
        for what, program in _programs(evaluator, batch).items():
            jax.block_until_ready(program())  # the first call of each warms up
            programs[name, what] = program
    for (name, what), seconds in timing.interleave(programs, config.timing_repeats).items():
        found[name][what] = [1e3 * s for s in seconds]
    devices = next(iter(evaluators.values())).trainer.mesh.devices
    return {
        "device": f"{devices.size} × {devices.flat[0].device_kind}",
        "length": config.length,
        "batch": config.batch,
        "encodings": found,
    }


def _programs(evaluator: Evaluator, batch: dict) -> dict:
    """One training step, and one evaluation of the parameters it has reached."""
    trainer = evaluator.trainer
    state, rows = trainer.init(0), trainer.put(batch)

    def step():
        nonlocal state
        state, _ = trainer.step(state, rows, np.int32(0))
        return state

    return {"train_ms": step, "eval_ms": lambda: evaluator.run(state.params, batch["tokens"])}
