"""Generation: one pass over the prompt, then token by token with a cache, in one program.

B batch, T prompt tokens, N new tokens.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax import positions as pos
from pe_jax.models.transformer import Transformer
from pe_jax.validation import is_int, is_real, require


def sample(key: jax.Array, logits: jax.Array, temperature: float, top_k: int) -> jax.Array:
    """Draws a token from logits [..., V]: int32. Temperature 0 is greedy, top_k 0 disables it."""
    if temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if top_k:
        least = jax.lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.random.categorical(key, logits / temperature, axis=-1).astype(jnp.int32)


def decode_step(model: Transformer, token, cache, key, temperature: float, top_k: int):
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

    Encodings that depend on the length (Dynamic NTK, LongRoPE) are set for T + N tokens, so that
    the cache stays valid.

    Args:
      model: a causal Transformer.
      prompt: int32 [B, T], T ≥ 1.
      new_tokens: N ≥ 0.
      key: for sampling; needed unless `temperature` is 0.
      temperature: ≥ 0; 0 is greedy.
      top_k: draw only among the k likeliest tokens; 0 for all.
      capacity: of the cache; None for T + N.

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
        raise ValueError(f"prompt has shape {list(prompt.shape)}; pass [B, T] with T >= 1")
    known = pos.concrete(prompt)
    if known is not None and known.size and not 0 <= known.min() <= known.max() < vocab:
        worst = known.max() if known.max() >= vocab else known.min()
        raise ValueError(f"prompt holds token id {worst}; keep 0 <= id < vocab = {vocab}")
    total = prompt.shape[1] + new_tokens
    capacity = total if capacity is None else capacity
    require(is_int(capacity, total), "capacity", capacity, f"prompt and new tokens need {total}")
    if key is None:
        require(temperature == 0, "key", key, "pass jax.random.key(seed), or temperature=0")
        key = jax.random.key(0)
    model = model.at_length(total)
    cache = model.init_cache(prompt.shape[0], capacity)
    graph, state = nnx.split(model)
    return _run(graph, state, prompt, cache, key, new_tokens, float(temperature), top_k)


def _decode(graph, state, prompt, cache, key, new_tokens, temperature, top_k):
    model = nnx.merge(graph, state)
    if not new_tokens:
        return prompt
    keys = jax.random.split(key, new_tokens)
    logits, cache = model(prompt, cache=cache)
    first = sample(keys[0], logits[:, -1], temperature, top_k)

    def step(carry, key):
        token, cache = carry
        return decode_step(model, token, cache, key, temperature, top_k), token

    (last, _), tokens = jax.lax.scan(step, (first, cache), keys[1:])
    return jnp.concatenate([prompt, tokens.T.astype(prompt.dtype), last[:, None]], axis=1)


_run = jax.jit(_decode, static_argnums=(0, 5, 6, 7))
