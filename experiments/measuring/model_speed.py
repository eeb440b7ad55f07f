"""Speed and memory of training and inference, all schemes interleaved in one process.

At the training length: a training step and an evaluation. At each of `timing_lengths`, with as many
tokens per batch: these two, prefill and decoding. Memory is the compiler's figure for the
temporaries of the training step. `timing` has the method.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from experiments.measuring import timing
from pe_jax.models import generate
from pe_jax.training.evaluate import Evaluator
from pe_jax.training.step import Trainer

DECODED = 16  # tokens per call, so that its initial copy of the cache costs little
OUT_OF_MEMORY = "out of memory"
# Each with the fraction of batch × length tokens that a call computes, or the tokens it decodes.
Programs = dict[str, tuple[Callable, float]]


def measure(
    evaluators: dict[str, Evaluator],
    batch: int,
    length: int,
    lengths: Sequence[int],
    repeats: int,
    proceed: Callable[[int], bool] = lambda done: True,
) -> dict[str, Any]:
    """Times by scheme and round, and bytes of temporaries.

    Times are milliseconds for batch × length tokens, and for one token per row in `decode_ms`.
    `batch` is that of the training length; inference is timed at `lengths` too.
    """
    trainer = next(iter(evaluators.values())).trainer
    shape, devices = trainer.mesh.shape, trainer.mesh.devices
    unit = shape["data"] * shape["fsdp"] * trainer.microbatches  # a batch is a multiple of it
    timings = {}
    for n in dict.fromkeys((length, *lengths)):
        rows = max(1, batch * length // n // unit) * unit
        timed = _interleaved(evaluators, rows, n, repeats, n in lengths, proceed)
        timings[n] = {"batch": rows, "encodings": timed}
    return {
        "device": f"{devices.size} × {devices.flat[0].device_kind}",
        "length": length,
        **timings[length],
        "lengths": {str(n): timings[n] for n in lengths},
    }


def _interleaved(
    evaluators: dict[str, Evaluator],
    rows: int,
    length: int,
    repeats: int,
    infers: bool,
    proceed: Callable[[int], bool],
) -> dict[str, dict]:
    """Times every program of every scheme in turn: by scheme, its times or its problem."""
    vocab = min(e.trainer.config.vocab for e in evaluators.values())
    tokens = np.random.default_rng(0).integers(0, vocab, (rows, length + 1), dtype=np.int32)
    ones = np.ones(tokens.shape, np.int32)  # one document per row
    batch = {"tokens": tokens, "segments": ones, "weights": ones.astype(np.float32)}
    timings: dict[str, dict[str, Any]] = {}
    programs: dict[tuple[str, str], Callable] = {}
    shares: dict[tuple[str, str], float] = {}
    for name, evaluator in evaluators.items():
        if not proceed(0):
            break
        logging.info("Speed at length %d: compiling %s", length, name)
        if not evaluator.defined(length):
            timings[name] = {"problem": "not defined"}
            continue
        trainer = evaluator.trainer
        try:
            memory = trainer.compile(rows, length).memory_analysis()
            scheme_programs = _programs(evaluator, batch, tokens)
            if infers:
                scheme_programs |= _inference(trainer, tokens[:, :-1])
            for program, _ in scheme_programs.values():
                jax.block_until_ready(program())  # the first call of each warms up
        except Exception as error:  # a compiler, an allocator or the code of an encoding
            loaded = f" with {len(programs)} programs of other schemes" if programs else ""
            full = "RESOURCE_EXHAUSTED" in str(error)
            timings[name] = {"problem": OUT_OF_MEMORY + loaded if full else timing.reason(error)}
            logging.error("Speed at length %d: %s failed: %s", length, name, error)
            continue
        timings[name] = {"train_temp_bytes": memory.temp_size_in_bytes}
        for what, (program, share) in scheme_programs.items():
            programs[name, what], shares[name, what] = program, share
    for (name, what), seconds in timing.interleave(programs, repeats, proceed=proceed).items():
        timings[name][what] = [1e3 * s / shares[name, what] for s in seconds]
    return timings


def _programs(evaluator: Evaluator, batch: dict, tokens: np.ndarray) -> Programs:
    """One training step, and one evaluation of the parameters it has reached."""
    trainer = evaluator.trainer
    state, ready, compiled = trainer.init(0), trainer.put(batch), trainer.step

    def step():
        nonlocal state
        state, _ = compiled(state, ready, np.int32(0))
        return state

    return {
        "train_ms": (step, 1.0),
        "eval_ms": (lambda: evaluator.run(state.params, tokens), 1.0),
    }


def _inference(trainer: Trainer, tokens: np.ndarray) -> Programs:
    """Prefill with all tokens but the last DECODED, and decoding DECODED tokens after it."""
    rows, length = tokens.shape
    params, key = trainer.init(0).params, jax.random.key(0)
    prompt = tokens[:, : length - DECODED]

    @jax.jit
    def prefill(params, prompt):
        model = trainer.model(params).at_length(length)
        logits, cache = model(prompt, cache=model.init_cache(rows, length))
        return logits[:, -1].argmax(-1), cache

    @jax.jit
    def decode(params, token, cache):
        model = trainer.model(params).at_length(length)

        def step(carry, _):
            token, cache = carry
            return generate.decode_step(model, token, cache, key, 0.0, 0), None

        return jax.lax.scan(step, (token, cache), length=DECODED)[0]

    ready = prefill(params, prompt)
    return {
        "prefill_ms": (functools.partial(prefill, params, prompt), prompt.shape[1] / length),
        "decode_ms": (functools.partial(decode, params, *ready), DECODED),
    }
