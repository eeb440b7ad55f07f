"""Describes a released checkpoint, and probes what its model makes of positions.

T tokens, n tokens read.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.measuring import passages
from experiments.running.command import launch
from pe_jax import hf
from pe_jax.hf.layers import rotation_of
from pe_jax.models.transformer import Transformer
from pe_jax.released import files, load, tokenizer_files
from pe_jax.released.checkpoint import Checkpoint
from pe_jax.training.step import last_losses
from pe_jax.validation import ConfigError

PASSAGE, OFFSETS = 512, (0, 1_000, 4_000, 16_000, 64_000)
TARGETS, LENGTHS = 1024, (1024, 2048, 4096, 8192)


def main(source: str, text: str | None, dtype: str, probe: bool) -> None:
    """Prints the description and, if `probe`, the two tables of losses."""
    checkpoint = files.read(source)
    try:
        lines = [*description(checkpoint)]
    except ValueError as error:  # of `pe_jax.hf`, which names the key
        raise ConfigError(f"{checkpoint.path}: {error}") from None
    for title, words in lines:
        print(f"{title:<12} {words}")
    if not probe:
        return
    tokens = passages.ids(checkpoint, text, LENGTHS[0] + 1, LENGTHS[-1])
    launch.keep_programs()
    model, begin = load.model(checkpoint, dtype), tokenizer_files.first(checkpoint.tokenizer)
    print(f"\nThe loss of a passage of {PASSAGE} tokens, read from a position on")
    print(f"{'position':>10} {'nats per token':>16}", flush=True)
    for offset, nats in by_offset(model, begin, tokens):
        shown = "beyond its table" if nats is None else f"{nats:.4f}"
        print(f"{offset:>10,} {shown:>16}", flush=True)
    print(f"\nThe loss of the same last {TARGETS:,} tokens, by the tokens that are read")
    print(f"{'context':>10} {'nats per token':>16}", flush=True)
    for length, nats in by_length(model, begin, tokens, trained_length(checkpoint)):
        print(f"{length:>10,} {nats:>16.4f}", flush=True)


def trained_length(checkpoint: Checkpoint) -> int | None:
    """The length that the config calls the model's, in tokens."""
    config = checkpoint.config.get("text_config") or checkpoint.config
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    return next((config[name] for name in names if config.get(name)), None)


def description(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """What was read, as titles and texts."""
    config, tensors = checkpoint.config, checkpoint.tensors
    layers = hf.encodings(config)
    config = config.get("text_config") or config
    yield "checkpoint", str(checkpoint.path)
    width = config.get("hidden_size", config.get("n_embd", config.get("d_model")))
    sizes = f"{len(layers)} layers, width {width}, heads of {layers[0].head_dim}"
    yield "model", f"{config.get('model_type')}: {sizes}"
    kinds: Counter[str] = Counter()
    for name, shape in tensors.shapes.items():
        kinds[tensors.kinds[name]] += math.prod(shape)
    stored = ", ".join(f"{count:,} in {kind}" for kind, count in kinds.most_common())
    yield "parameters", f"{kinds.total():,}: {stored}"
    yield "positions", hf.pattern(layers)
    windows = Counter(layer.window for layer in layers)
    shown = (
        f"{n} of {len(layers)} layers see {window:,}" for window, n in windows.items() if window
    )
    yield "windows", ", ".join(shown) or "none: every layer sees all tokens before"
    rotations = [rotation for layer in layers if (rotation := rotation_of(layer)) is not None]
    if rotations:
        yield "bases", ", ".join(f"{base:g}" for base in sorted({r.base for r in rotations}))
        scalings = dict.fromkeys(str(r.scaling) for r in rotations if r.scaling is not None)
        yield "scaling", ", ".join(scalings) or "none"
    length = trained_length(checkpoint)
    yield "trained to", "unknown" if length is None else f"{length:,} tokens, as its config says"
    yield (
        "tokenizer",
        "none that is read" if checkpoint.tokenizer is None else tokens_of(checkpoint),
    )


def tokens_of(checkpoint: Checkpoint) -> str:
    """The tokenizer in words."""
    tokenizer = checkpoint.tokenizer
    begin = "".join(map(tokenizer.id_to_token, tokenizer_files.first(tokenizer)))
    chat = "a" if "chat_template" in checkpoint.extra else "no"
    words = f"texts begin with {begin}" if begin else "texts begin with no token"
    return f"{tokenizer.get_vocab_size():,} tokens; {words}; {chat} template for chats"


@functools.partial(jax.jit, static_argnums=(0, 3))
def _losses(graph: Any, state: Any, row: jax.Array, count: int, positions: Any) -> jax.Array:
    return last_losses(nnx.merge(graph, state), row, count, positions).mean()


def loss(
    model: Transformer, row: Iterable[int], count: int, positions: np.ndarray | None = None
) -> float:
    """The mean loss of the last `count` targets of one row."""
    tokens = jnp.asarray([*row], jnp.int32)[None]
    graph, state = nnx.split(model.at_length(tokens.shape[1] - 1))
    return float(_losses(graph, state, tokens, count, positions))


def by_offset(
    model: Transformer, begin: list[int], tokens: list[int]
) -> Iterator[tuple[int, float | None]]:
    """The loss of one passage read from each position on; None beyond what is defined."""
    row = [*begin, *tokens[: PASSAGE + 1 - len(begin)]]
    limit = model.config.limit
    for offset in OFFSETS:
        if limit is not None and offset + PASSAGE > limit:
            yield offset, None
            continue
        positions = offset + np.arange(PASSAGE, dtype=np.int32)[None]
        yield offset, loss(model, row, PASSAGE - len(begin), positions)


def by_length(
    model: Transformer, begin: list[int], tokens: list[int], trained: int | None
) -> Iterator[tuple[int, float]]:
    """The loss of the same last targets with each length of context that the text allows."""
    limit = min(trained or LENGTHS[-1], model.config.limit or LENGTHS[-1], len(tokens) - 1)
    lengths = [length for length in LENGTHS if length <= limit] or [limit]
    end = lengths[-1] + 1
    for length in lengths:
        row = [*begin, *tokens[end - length - 1 + len(begin) : end]]
        yield length, loss(model, row, min(TARGETS, lengths[0]) - len(begin))
