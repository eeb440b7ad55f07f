"""How many tiles the running sums of a trained model leave out (FoX, CABLE), and the time it saves.

    python -m tools.skipped_tiles --run=runs/field_2026/runs/fox/seed0 --lengths=1024,4096

Text of the model's test split, one row of each length. The model runs as it is, and with every tile
visited; rounds of both are interleaved. Not in the numbers of a comparison: there the lengths are
short, and attention is dense.
"""

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments.measuring.timing import interleave
from experiments.running.training.trained_run import load
from pe_jax.engines.tiled import skipping
from pe_jax.training import data, tokenizer
from pe_jax.training.paths import local


def logits_of(model, length: int, skip: bool, note=None):
    """A compiled forward pass; `note` gets the share of visible tiles that a group leaves out."""
    can_skip, tiles = skipping.can_skip, skipping.negligible_tiles

    def counted(*args):
        skipped = tiles(*args)
        if note is not None:
            rows, columns = (-(-length // n) for n in skipped.shape)
            last = rows * jnp.arange(1, skipped.shape[0] + 1)[:, None] - 1
            visible = columns * jnp.arange(skipped.shape[1])[None] <= last
            share = (skipped & visible).sum() / visible.sum()
            jax.debug.callback(note, share)
        return skipped

    skipping.negligible_tiles = counted
    skipping.can_skip = can_skip if skip else lambda *_: False
    jax.clear_caches()  # of what was traced before
    try:  # while it is traced
        tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
        return jax.jit(model.at_length(length)).lower(tokens).compile()
    finally:
        skipping.can_skip, skipping.negligible_tiles = can_skip, tiles


def text(config, length: int) -> np.ndarray:
    """The first tokens of the test split: int32 [1, length]."""
    corpus, tokens = data.load(config.data), tokenizer.get(config.tokenizer)
    ids: list[int] = []
    for document in corpus.documents("test"):
        ids += [*tokens.encode(document)]
        if len(ids) >= length:
            break
    return np.asarray(ids[:length], np.int32)[None]


def measure(model, tokens: np.ndarray, rounds: int) -> str:
    """The share that is left out, times and the difference of the logits, on one line."""
    length, shares = tokens.shape[1], []
    counted = logits_of(model, length, True, lambda share: shares.append(float(share)))
    logits = counted(tokens)
    jax.effects_barrier()
    fast, full = (logits_of(model, length, skip) for skip in (True, False))
    gap = float(jnp.abs(logits - full(tokens)).max())
    times = interleave({"fast": lambda: fast(tokens), "whole": lambda: full(tokens)}, rounds)
    low, middle, high = np.percentile(np.divide(times["fast"], times["whole"]), [25, 50, 75])
    return (
        f"{length:6,} tokens: {np.mean(shares):.0%} of the visible tiles left out,"
        f" {1e3 * np.median(times['fast']):,.1f} ms, {middle:.2f} [{low:.2f}, {high:.2f}] of the"
        f" time with all; logits differ by {gap:.1e}"
    )


def main(_) -> None:
    """Prints a row for each length."""
    model, config = load(local("run", flags.FLAGS.run).absolute())
    for length in map(int, flags.FLAGS.lengths):
        print(measure(model, text(config, length), flags.FLAGS.repeats))


if __name__ == "__main__":
    flags.DEFINE_string("run", None, "The workdir of a trained run.", required=True)
    flags.DEFINE_list("lengths", ["1024", "4096"], "Tokens in a row.")
    flags.DEFINE_integer("repeats", 7, "Interleaved rounds.")
    app.run(main)
