"""Calls of attention that kernels are asked for, and the small cases that are drawn of them."""

import jax.numpy as jnp

import pe_jax
from pe_jax.engines.kernels import small_case
from pe_jax.engines.kernels.gpu import engine
from tests.test_gpu_kernels import parse
from tests.util import DIMS, B, E, H, K, noise, random_params

LENGTH = 300  # longer than what is always dense
T5 = "t5(num_buckets=6,max_distance=9)"


def operands(length=LENGTH, dtype="float32"):
    return tuple(jnp.asarray(noise(B, length, n, E, seed=n), dtype) for n in (H, K, K))


def attend(spec="alibi", qkv=None, **options):
    encoding = parse(spec)
    q, k, v = operands() if qkv is None else qkv
    (heads, width), kv_heads = q.shape[-2:], k.shape[-2]
    dims = DIMS if width == E else pe_jax.Dims(heads * width, heads, kv_heads, width)
    given = {
        "encoding": encoding,
        "params": random_params(encoding, dims),
        "dims": dims,
        "x": q.reshape(*q.shape[:-2], -1),
    }
    return pe_jax.attention(q, k, v, **given, **options)


def answer(question, *args, **options):
    """What `question` says of the call that an engine gets from `attend`; no engine runs."""
    answers = []

    def ask(spec, terms, q, k, v):
        answers.append(question(spec, terms, q, k, v))
        rows = q.x.shape[:3]
        return jnp.zeros((*rows, v.shape[-1]), v.dtype), jnp.zeros((*rows, 1))

    attend(*args, implementation=ask, **options)
    return answers[0]


def drawn(terms=(), spec="nope", qkv=None, length: int | None = 41, **options):
    """The small case of a call with its numbers; as long as the GPU's kernels ask if None."""

    def draw(*call):
        tokens = engine.sample_length(*call) if length is None else length
        return small_case.draw(small_case.shrink(tokens, *call))

    return answer(draw, spec, qkv, terms=terms, **options)
