"""The passes of the TPU kernels over their tiles: forward, and backward.

Each backward kernel computes each tile again. Letters are those of `plan`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.engines.kernels.tpu import kernels
from pe_jax.engines.kernels.tpu.launch import WIDE, launch
from pe_jax.engines.kernels.tpu.plan import BY_DISTANCE, OF_HEADS, Arrays, Plan, Schedule

PIECES = ("growth", "pieces", "q_rates")  # which one gradient has all


def forward(plan: Plan, x: Arrays, schedule: Schedule, dtype: Any) -> Arrays:
    """`out` in a dtype, and `lse`; -LOWEST for a row that sees nothing."""
    (batch, heads, tokens, _), value = x.q.shape, x.v.shape[3]
    outs = Arrays(
        out=jax.ShapeDtypeStruct((batch, heads, tokens, value), dtype),
        lse=jax.ShapeDtypeStruct((batch, heads, 1, tokens), jnp.float32),
    )
    return launch(
        plan, kernels.forward_kernel, schedule, x, outs, Arrays(out=value, **_columns(plan, x))
    )


def backward(
    plan: Plan, x: Arrays, of_queries: Schedule, of_keys: Schedule, learned: Any, dtype: Any = None
) -> Arrays:
    """Gradients of q, k, v and what is `learned`; x has `lse`, `d_out` and `inner` too.

    `dtype` is that of the gradients of tokens; None: that of what they are gradients of.
    """
    if any(n in learned for n in PIECES):
        learned = {*learned, *PIECES}
    wanted = [n for n in ("q_numbers", "q_rates", "rows", "bias", *OF_HEADS) if n in learned]
    elsewhere = [n for n in wanted if plan.by_diagonal and n in BY_DISTANCE]
    d_q = _shapes(x, dtype, "q", *(n for n in wanted if n not in elsewhere))
    grads = launch(
        plan,
        kernels.queries_kernel,
        of_queries,
        x,
        d_q,
        _kept(plan, d_q)._replace(**_columns(plan, x)),
    )
    if elsewhere:
        shapes = _shapes(x, dtype, *elsewhere)
        more = launch(plan, kernels.diagonals_kernel, of_queries, x, shapes, Arrays())
        grads = _joined(grads, more)
    if x.bands is not None:  # for keys, distances run backwards
        x = x._replace(bands=jnp.roll(x.bands[..., ::-1], -1, axis=-1))
    d_k = _shapes(x, dtype, "k", "v", *(n for n in ("k_numbers", "columns") if n in learned))
    return _joined(grads, launch(plan, kernels.keys_kernel, of_keys, x, d_k, _kept(plan, d_k)))


def _joined(some: Arrays, others: Arrays) -> Arrays:
    """All of both."""
    return Arrays(*(b if a is None else a for a, b in zip(some, others, strict=True)))


def _shapes(x: Arrays, dtype: Any, *names: str) -> Arrays:
    """Those of gradients: float32 of what heads learn, and of tokens those of each batch row.

    Of a bias of pairs that of each batch row and head.
    """
    shapes = {}
    for name in names:
        array = getattr(x, name)
        shape = array.shape if name in OF_HEADS else (len(x.q), *array.shape[1:])
        if name == "bias":
            shape = (len(array), *x.q.shape[:2], *array.shape[3:])
        kind = jnp.float32 if name in OF_HEADS else dtype or array.dtype
        shapes[name] = jax.ShapeDtypeStruct(shape, kind)
    return Arrays(**shapes)


def _columns(plan: Plan, x: Arrays) -> dict[str, int]:
    """The width of rates as columns, where there are any."""
    return {} if x.pieces is None else {"rate_columns": plan.lanes}


def _kept(plan: Plan, outs: Arrays) -> Arrays:
    """Widths of the float32 sums of what is of tokens; numbers have a lane each, rates all."""
    given, others = zip(Arrays._fields, outs, strict=True), (*OF_HEADS, "bias")
    widths = {n: a.shape[-1] for n, a in given if a is not None and n not in others}
    return Arrays(**{n: width if n in WIDE else plan.lanes for n, width in widths.items()})
