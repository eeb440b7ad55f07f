"""Speed and memory of a training step and of an evaluation, all schemes interleaved.

Round i of every scheme runs next to round i of every other, so that a ratio within a round holds
while a shared machine changes its pace. Memory is the compiler's figure for the step's temporaries.
"""

import time

import jax
import numpy as np

from pe_jax.training.config import CompareConfig
from pe_jax.training.evaluate import Evaluator

STEPS = 5  # training steps a round


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
    states, found = {}, {}
    for name, evaluator in evaluators.items():
        trainer = evaluator.trainer
        program = trainer.compile(config.batch, config.length)
        states[name] = trainer.init(0)
        found[name] = {
            "train_ms": [],
            "eval_ms": [],
            "train_temp_bytes": program.memory_analysis().temp_size_in_bytes,
            "compile_seconds": trainer.compile_seconds,
        }
    for turn in range(config.timing_repeats + 1):
        for name, evaluator in evaluators.items():
            trainer = evaluator.trainer
            state, rows = states[name], trainer.put(batch)
            begin = time.perf_counter()
            for _ in range(STEPS):
                state, _ = trainer.step(state, rows, np.int32(0))
            jax.block_until_ready(state)
            middle = time.perf_counter()
            evaluator.run(state.params, tokens)
            states[name] = state
            if turn:  # the first round warms up
                found[name]["train_ms"].append(1e3 * (middle - begin) / STEPS)
                found[name]["eval_ms"].append(1e3 * (time.perf_counter() - middle))
    device = f"{len(jax.devices())} × {jax.devices()[0].device_kind}"
    return {
        "device": device,
        "length": config.length,
        "batch": config.batch,
        "encodings": found,
    }
