"""Which engine runs a call: decided here and nowhere else.

It follows from what was asked, how tokens lie on devices, the mesh in force, the kinds of terms and
the length.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from pe_jax.encodings.terms import (
    RelativeKeys,
    RelativeQueries,
    RelativeState,
    RelativeValues,
    RowRescore,
    Side,
    select,
)
from pe_jax.engines import reference, tiled
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.sharded import ring, rows
from pe_jax.engines.sharded.layout import BlockPermuted, Contiguous, RowSharded
from pe_jax.engines.tiled import Tiled
from pe_jax.engines.tiled.tiles import TILE, devices
from pe_jax.validation import nearest

IMPLEMENTATIONS = ("dense", "tiled", "fused", "tpu")
KERNELS = {"gpu": "fused", "tpu": "tpu"}  # platform → its kernels
SHORT = 256  # up to this length dense was the faster on CPU, if all scores fit one tile …
SHORTER = 128  # … and if vectors, not numbers, are added pair by pair
VECTORS = (RelativeKeys, RelativeQueries, RelativeValues, RelativeState)


class Call(NamedTuple):
    """What every engine takes."""

    spec: AttentionSpec
    terms: tuple
    q: Side
    k: Side
    v: jax.Array


def engine(implementation: Any, layout: Contiguous, call: Call, name: str) -> Callable:
    """The engine that runs the call, a function of its fields. What is chosen is logged once.

    Args:
      implementation: what was asked for, or None.
      layout: how tokens lie on devices.
      call: the call.
      name: of the encoding, for messages.

    Raises:
      ValueError: what was asked for is unknown, needs another device, or cannot run this call.
    """
    if isinstance(layout, BlockPermuted):
        return _ring(implementation, layout, call, name)
    if isinstance(layout, RowSharded):

        def on_each_device(*call):
            return _alone(implementation, Call(*call), name)(*call)

        return functools.partial(rows.attend, layout, on_each_device)
    return _alone(implementation, call, name)


def _ring(implementation: Any, layout: BlockPermuted, call: Call, name: str) -> Callable:
    """The ring, with tiles as `implementation` has them if that is the tiled engine."""
    if select(call.terms, RowRescore):
        raise ValueError(f"{name} needs whole rows of scores: leave out the ring (mesh.seq=1)")
    if implementation in (None, "tiled"):
        implementation = Tiled()
    if not isinstance(implementation, Tiled):
        raise ValueError(
            f"implementation={implementation!r} with layout={type(layout).__name__}: devices that"
            " share rows run a ring of tiles; leave it out, or pass 'tiled' or a Tiled(sizes)"
        )
    return functools.partial(ring.attend, layout, implementation.sizes)


def _alone(implementation: Any, call: Call, name: str) -> Callable:
    """The engine for whole rows."""
    if callable(implementation):
        return implementation
    if implementation is not None:
        return _asked_for(implementation, call, name)
    if _is_small(call):
        _log(logging.INFO, f"{name}: dense, for one query or a short sequence")
        return reference.attend
    if select(call.terms, RowRescore):
        _log(logging.WARNING, f"{name}: dense, O(L²) memory: it needs whole rows of scores")
        return reference.attend
    kernel = KERNELS.get(jax.default_backend())
    if kernel is None:
        _log(logging.INFO, f"{name}: tiled")
        return tiled.attend
    reason = _refusal(kernel, call)
    if devices(call.q.x, call.k.x, call.v) > 1:  # under jit XLA would gather a kernel's operands
        reason = "several devices, among which XLA cannot divide a kernel"
    if reason is not None:
        _log(logging.WARNING, f"{name}: tiles of XLA, not the {kernel} kernel: {reason}")
        return tiled.attend
    _log(logging.INFO, f"{name}: the {kernel} kernel")
    return _attend(kernel)


def _asked_for(implementation: str, call: Call, name: str) -> Callable:
    """The engine of this name, if it can run the call."""
    asked = f"implementation={implementation!r}"
    if implementation not in IMPLEMENTATIONS:
        near = nearest(str(implementation), IMPLEMENTATIONS)
        raise ValueError(f"{asked} is unknown; did you mean {near!r}?")
    if select(call.terms, RowRescore) and implementation != "dense":
        fix = f"{name} needs whole rows of scores, O(L²) memory; pass 'dense' or None"
        raise ValueError(f"{asked}: {fix}")
    if (
        implementation in KERNELS.values()
        and (reason := _refusal(implementation, call)) is not None
    ):
        raise ValueError(f"{asked}: {reason}; pass 'tiled' or None")
    return _attend(implementation)


def has_own_mask(implementation: Any) -> bool:
    """Whether an engine hides more than `causal` says."""
    return getattr(implementation, "has_own_mask", False)


def _refusal(kernel: str, call: Call) -> str | None:
    """Why a kernel cannot run here, or cannot run this call; None if it can."""
    platform = jax.default_backend()
    if KERNELS.get(platform) != kernel:
        needs = next(name for name, own in KERNELS.items() if own == kernel)
        return f"it needs a {needs.upper()}, this is a {platform.upper()}"
    return _module(kernel).refusal(*call)


def _attend(name: str) -> Callable:
    """The function of an engine."""
    return _module(name).attend


def _module(name: str) -> Any:
    """That of an engine; kernels are imported when they are used."""
    if name == "fused":
        from pe_jax.engines.gpu import engine
    elif name == "tpu":
        from pe_jax.engines.tpu import engine
    else:
        engine = {"dense": reference, "tiled": tiled}[name]
    return engine


def _is_small(call: Call) -> bool:
    """Whether all scores at once are no more than the tiled engine would hold."""
    (batch, heads, queries, _), keys = call.q.x.shape, call.k.x.shape[2]
    short = SHORTER if select(call.terms, *VECTORS) else SHORT
    fits = batch * heads * queries * keys <= TILE
    return queries == 1 or (max(queries, keys) <= short and fits)


@functools.cache
def _log(level: int, text: str) -> None:
    logging.getLogger("pe_jax").log(level, "attention: %s", text)
