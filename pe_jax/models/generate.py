"""Generation with a cache: one compiled program for all prompts, lengths and temperatures.

B batch, T prompt tokens, N new tokens, S capacity of the cache.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax import positions as pos
from pe_jax.models.transformer import Transformer
from pe_jax.validation import ConfigError, is_int, is_real, require

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


def decode_step(model: Transformer, token, cache, key, temperature, top_k: int):
    """The next tokens int32 [B], and the extended cache, from tokens [B]."""
    logits, cache = model(token[:, None], cache=cache)
    return sample(key, logits[:, -1], temperature, top_k), cache


def generate(
    model: Transformer,
    prompt,
    new_tokens: int,
    *,
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
      key: for sampling; needed unless `temperature` is 0.
      temperature: ≥ 0; 0 is greedy.
      top_k: draw only among the k likeliest tokens; 0 for all.
      capacity: S; None for the next power of two from T + N, but no more than a table defines.

    Returns:
      int32 [B, T + N], including the prompt.

    Raises:
      ValueError: an empty prompt, ids outside the vocabulary, a cache too small, values out of
        range, a length beyond what the encoding defines.
    """
    require(is_int(new_tokens, 0), "new_tokens", new_tokens, "pass an integer of at least 0")
    ok = is_real(temperature) and temperature >= 0
    require(ok, "temperature", temperature, "pass a number of at least 0")
    vocab = model.config.vocab
    ok = is_int(top_k, 0) and top_k <= vocab
    require(ok, "top_k", top_k, f"pass an integer from 0 to the vocabulary's {vocab}")
    prompt = pos.as_positions(prompt, name="prompt")
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ConfigError(f"prompt has shape {list(prompt.shape)}; pass [B, T] with T >= 1")
    known = pos.concrete(prompt)
    if known is not None and known.size and not 0 <= known.min() <= known.max() < vocab:
        worst = known.max() if known.max() >= vocab else known.min()
        raise ConfigError(f"prompt holds token id {worst}; keep 0 <= id < vocab = {vocab}")
    total = prompt.shape[1] + new_tokens
    if capacity is None:
        power = max(LEAST, 1 << (total - 1).bit_length())
        capacity = max(total, min(power, model.config.limit or power))
    require(is_int(capacity, total), "capacity", capacity, f"prompt and new tokens need {total}")
    if key is None:
        require(temperature == 0, "key", key, "pass jax.random.key(seed), or temperature=0")
        key = jax.random.key(0)
    if not new_tokens:
        return prompt
    model = model.at_length(total)
    cache = model.init_cache(prompt.shape[0], capacity)
    graph, state = nnx.split(model)
    row = jnp.pad(prompt, ((0, 0), (0, capacity - prompt.shape[1])))
    lengths = jnp.asarray([prompt.shape[1], total], jnp.int32)
    return _run(graph, state, row, lengths, cache, key, jnp.float32(temperature), top_k)[:, :total]


def _decode(graph, state, row, lengths, cache, key, temperature, top_k):
    """The row [B, S], filled from the prompt's length up to the total."""
    model = nnx.merge(graph, state)
    prompt, total = lengths
    size = min(CHUNK, row.shape[1])

    def read(carry):
        at, cache = carry
        part = jax.lax.dynamic_slice_in_dim(row, at, size, 1)
        return at + size, model(part, cache=cache)[1]

    def more(carry):  # the last token of the prompt is left, whose logits are needed
        return carry[0] + size < prompt

    def step(carry):
        at, row, cache = carry
        token = jax.lax.dynamic_index_in_dim(row, at, 1, keepdims=False)
        step_key = jax.random.fold_in(key, at + 1)
        new, cache = decode_step(model, token, cache, step_key, temperature, top_k)
        old = jax.lax.dynamic_index_in_dim(row, at + 1, 1, keepdims=False)
        new = jnp.where(at + 1 < prompt, old, new.astype(old.dtype))
        return at + 1, jax.lax.dynamic_update_index_in_dim(row, new, at + 1, 1), cache

    first, cache = jax.lax.while_loop(more, read, (jnp.zeros((), jnp.int32), cache))
    return jax.lax.while_loop(lambda c: c[0] + 1 < total, step, (first, row, cache))[1]


_run = jax.jit(_decode, static_argnums=(0, 7))
