"""Generation with a cache: one compiled program for all prompts, lengths and temperatures.

B batch, T prompt tokens, N new tokens, S capacity of the cache.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax.engines.decoding.cache import with_segments
from pe_jax.models.transformer import Transformer
from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.validation import ConfigError, is_int, is_real, python_ints, require

CHUNK = 32  # prompt tokens per pass; the last ones are read one by one, as new ones are
LEAST = 64  # smallest capacity that is chosen


def sample(key: jax.Array, logits: jax.Array, temperature, top_k: int) -> jax.Array:
    """Draws a token from logits [..., V]: int32. Temperature 0 is greedy, top_k 0 disables it."""
    likeliest = jnp.argmax(logits, axis=-1)
    if top_k:
        least = jax.lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    drawn = jax.random.categorical(key, logits / jnp.where(temperature > 0, temperature, 1.0))
    return jnp.where(temperature > 0, drawn, likeliest).astype(jnp.int32)


def decode_step(model: Transformer, token, cache, key, temperature, top_k: int, segments=None):
    """The next tokens int32 [B], and the extended cache, from tokens [B] (segments [B, 1])."""
    logits, cache = model(token[:, None], segments=segments, cache=cache)
    return sample(key, logits[:, -1], temperature, top_k), cache


def _checked(
    model: Transformer,
    prompt: jax.Array,
    new_tokens: int,
    key: jax.Array | None,
    temperature: float,
    top_k: int,
    capacity: int | None,
) -> tuple[int, jax.Array]:
    """The capacity of the cache and the key, once all arguments are in range."""
    require(is_int(new_tokens, 0), "new_tokens", new_tokens, "pass an integer of at least 0")
    ok = is_real(temperature) and temperature >= 0
    require(ok, "temperature", temperature, "pass a number of at least 0")
    vocab = model.config.vocab
    ok = is_int(top_k, 0) and top_k <= vocab
    require(ok, "top_k", top_k, f"pass an integer from 0 to the vocabulary's {vocab}")
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ConfigError(f"prompt has shape {list(prompt.shape)}; pass [B, T] with T >= 1")
    ids = concrete(prompt)
    if ids is not None and ids.size and not 0 <= ids.min() <= ids.max() < vocab:
        worst = ids.max() if ids.max() >= vocab else ids.min()
        raise ConfigError(f"prompt holds token id {worst}; keep 0 <= id < vocab = {vocab}")
    total = prompt.shape[1] + new_tokens
    limit = model.config.limit
    fix = f"{prompt.shape[1]} tokens of the prompt and these are more than {limit} positions"
    require(limit is None or total <= limit, "new_tokens", new_tokens, fix)
    if capacity is None:
        power = max(LEAST, 1 << (total - 1).bit_length())
        capacity = max(total, min(power, limit or power))
    require(is_int(capacity, total), "capacity", capacity, f"prompt and new tokens need {total}")
    if key is None:
        require(temperature == 0, "key", key, "pass jax.random.key(seed), or temperature=0")
        key = jax.random.key(0)
    return capacity, key


@python_ints
def generate(
    model: Transformer,
    prompt,
    new_tokens: int,
    *,
    segments=None,
    key: jax.Array | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    capacity: int | None = None,
) -> jax.Array:
    """Continues a prompt.

    T, N and the temperature are arguments of the program: it is compiled once for each model, B, S
    and `top_k`. Encodings that depend on the length (Dynamic NTK, LongRoPE) are set for T + N
    tokens, so that the cache stays valid; they compile anew for each T + N.

    The draw of a token depends on the key and its index in the row.

    Args:
      model: a causal Transformer.
      prompt: int32 [B, T], T ≥ 1.
      new_tokens: N ≥ 0.
      segments: integers [B, T] for prompts of several lengths: negative where a row has padding,
        before or after its tokens; None: no padding.
      key: for sampling; needed unless `temperature` is 0.
      temperature: ≥ 0; 0 is greedy.
      top_k: draw only among the k likeliest tokens; 0 for all.
      capacity: S; None for the next power of two from T + N, but no more than a table defines.

    Returns:
      int32 [B, T + N]: the prompt as it was given, then the new tokens of each row.

    Raises:
      ValueError: an empty prompt, ids outside the vocabulary, a cache too small, values out of
        range, a length beyond what the encoding defines; segments of another shape.
    """
    prompt = as_positions(prompt, name="prompt")
    capacity, key = _checked(model, prompt, new_tokens, key, temperature, top_k, capacity)
    total = prompt.shape[1] + new_tokens
    if segments is not None:
        segments = as_positions(segments, name="segments")
        fix = f"pass ids {list(prompt.shape)}, negative for padding"
        require(segments.shape == prompt.shape, "segments", segments.shape, fix)
    if not new_tokens:
        return prompt
    model = model.at_length(total)
    capacity = min([capacity, *(n for e in model.encodings if (n := e.valid_length()))])
    cache = model.init_cache(prompt.shape[0], capacity, padded=segments is not None)
    graph, state = nnx.split(model)
    tokens, padding = prompt, ((0, 0), (0, capacity - prompt.shape[1]))
    if segments is not None:  # padding first: all rows then continue at the same index
        order = jnp.argsort(segments >= 0, axis=1, stable=True)
        tokens, segments = (jnp.take_along_axis(x, order, 1) for x in (prompt, segments))
        segments = jnp.pad(jnp.minimum(segments, 0), padding)
        cache = [with_segments(layer) for layer in cache]
    lengths = jnp.asarray([prompt.shape[1], total], jnp.int32)
    args = key, jnp.float32(temperature), top_k
    row = _run(graph, state, jnp.pad(tokens, padding), segments, lengths, cache, *args)
    return jnp.concatenate([prompt, row[:, prompt.shape[1] : total]], axis=1)


@python_ints
def stream(
    model: Transformer,
    prompt,
    new_tokens: int,
    *,
    key: jax.Array | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    stop: tuple[int, ...] = (),
) -> Iterator[int]:
    """The tokens that `generate` appends to one prompt, each as soon as it is drawn.

    Two programs are compiled for each model, capacity and `top_k`: one reads `CHUNK` tokens of the
    prompt, one a token.

    Args:
      model: a causal Transformer.
      prompt: integers [T], T ≥ 1.
      new_tokens: N ≥ 0, at most.
      key: as for `generate`.
      temperature: as for `generate`.
      top_k: as for `generate`.
      stop: tokens that end the text; they are not yielded.

    Yields:
      Token ids.

    Raises:
      ValueError: as `generate`, when the first token is asked for.
    """
    row = as_positions(prompt, name="prompt")[None]
    capacity, key = _checked(model, row, new_tokens, key, temperature, top_k, None)
    if not new_tokens:
        return
    length = row.shape[1]
    model = model.at_length(length + new_tokens)
    capacity = min([capacity, *(n for e in model.encodings if (n := e.valid_length()))])
    cache, (graph, state) = model.init_cache(1, capacity), nnx.split(model)
    read = (length - 1) // CHUNK * CHUNK
    for start in range(0, read, CHUNK):
        cache = _read(graph, state, row[:, start : start + CHUNK], cache)
    token = row[:, read]
    for index in range(read, length + new_tokens - 1):
        of_step = jax.random.fold_in(key, index + 1), jnp.float32(temperature), top_k
        drawn, cache = _step(graph, state, token, cache, *of_step)
        token = row[:, index + 1] if index + 1 < length else drawn
        if index + 1 >= length:
            if int(drawn[0]) in stop:
                return
            yield int(drawn[0])


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _read(graph, state, tokens, cache):
    """The cache, extended by tokens [1, n] of a prompt."""
    return nnx.merge(graph, state)(tokens, cache=cache)[1]


@functools.partial(jax.jit, static_argnums=(0, 6), donate_argnums=3)
def _step(graph, state, token, cache, key, temperature, top_k: int):
    return decode_step(nnx.merge(graph, state), token, cache, key, temperature, top_k)


def _decode(graph, state, row, segments, lengths, cache, key, temperature, top_k):
    """The rows [B, S], filled from the prompt's length up to the total."""
    model = nnx.merge(graph, state)
    prompt, total = lengths
    size = min(CHUNK, row.shape[1])

    def read(carry):
        index, cache = carry
        tokens, ids = (
            None if x is None else jax.lax.dynamic_slice_in_dim(x, index, size, 1)
            for x in (row, segments)
        )
        return index + size, model(tokens, segments=ids, cache=cache)[1]

    def more(carry):  # but the last token of the prompt, whose logits are needed
        return carry[0] + size < prompt

    def step(carry):
        index, row, cache = carry
        token = jax.lax.dynamic_index_in_dim(row, index, 1, keepdims=False)
        ids = None
        if segments is not None:
            ids = jax.lax.dynamic_slice_in_dim(segments, index, 1, 1)
        step_key = jax.random.fold_in(key, index + 1)
        new, cache = decode_step(model, token, cache, step_key, temperature, top_k, ids)
        old = jax.lax.dynamic_index_in_dim(row, index + 1, 1, keepdims=False)
        new = jnp.where(index + 1 < prompt, old, new.astype(old.dtype))
        return index + 1, jax.lax.dynamic_update_index_in_dim(row, new, index + 1, 1), cache

    first, cache = jax.lax.while_loop(more, read, (jnp.zeros((), jnp.int32), cache))
    return jax.lax.while_loop(lambda c: c[0] + 1 < total, step, (first, row, cache))[1]


_run = jax.jit(_decode, static_argnums=(0, 8))
