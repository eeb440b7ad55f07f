"""Which engine runs a call: decided here and nowhere else.

From what was asked for, how the tokens lie on devices, the mesh in force, the kinds of terms and
the length.
"""

import difflib
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

IMPLEMENTATIONS = ("dense", "tiled", "fused", "tpu")
KERNELS = {"gpu": "fused", "tpu": "tpu"}
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


def engine(implementation, layout: Contiguous, call: Call, name: str) -> Callable:
    """The engine that runs the call. What is chosen here is logged once."""
    if isinstance(layout, BlockPermuted):
        return _ring(implementation, layout, call, name)
    if isinstance(layout, RowSharded):

        def on_each_device(*call):
            return _pick(implementation, Call(*call), name)(*call)

        return functools.partial(rows.attend, layout, on_each_device)
    return _pick(implementation, call, name)


def _ring(implementation, layout: BlockPermuted, call: Call, name: str) -> Callable:
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


def _pick(implementation, call: Call, name: str) -> Callable:
    """The engine for rows that are whole."""
    if callable(implementation):
        return implementation
    device, terms = jax.default_backend(), call.terms
    whole = bool(select(terms, RowRescore))
    if implementation is not None:
        if implementation not in IMPLEMENTATIONS:
            near = difflib.get_close_matches(str(implementation), IMPLEMENTATIONS, n=1, cutoff=0)
            raise ValueError(
                f"implementation={implementation!r} is unknown; did you mean {near[0]!r}?"
            )
        if whole and implementation != "dense":
            fix = f"{name} needs whole rows of scores, O(L²) memory; pass 'dense' or None"
            raise ValueError(f"implementation={implementation!r}: {fix}")
        if implementation in KERNELS.values():
            why = _refusal(implementation, call)
            if why is not None:
                raise ValueError(f"implementation={implementation!r}: {why}; pass 'tiled' or None")
        return _module(implementation).attend
    if _is_small(call):
        _log(logging.INFO, f"{name}: dense, for one query or a short sequence")
        return reference.attend
    if whole:
        _log(logging.WARNING, f"{name}: dense, O(L²) memory: it needs whole rows of scores")
        return reference.attend
    if device in KERNELS:
        why = _refusal(KERNELS[device], call)
        if devices(call.q.x, call.k.x, call.v) > 1:  # under jit XLA would gather its operands
            why = "several devices, among which XLA cannot divide a kernel"
        if why is None:
            _log(logging.INFO, f"{name}: the {KERNELS[device]} kernel")
            return _module(KERNELS[device]).attend
        _log(logging.WARNING, f"{name}: tiles of XLA, not the {KERNELS[device]} kernel: {why}")
        return tiled.attend
    _log(logging.INFO, f"{name}: tiled")
    return tiled.attend


def has_own_mask(implementation: Any) -> bool:
    """Whether an engine hides more than `causal` says."""
    return getattr(implementation, "has_own_mask", False)


def _refusal(name: str, call: Call) -> str | None:
    """Why a kernel cannot run here, or cannot run this call; None if it can."""
    device = jax.default_backend()
    if KERNELS.get(device) != name:
        needs = next(d for d, kernel in KERNELS.items() if kernel == name)
        return f"it needs a {needs.upper()}, this is a {device.upper()}"
    return _module(name).refusal(*call)


def _is_small(call: Call) -> bool:
    """Whether all scores at once are no more than the tiled engine would hold."""
    (batch, heads, queries, _), keys = call.q.x.shape, call.k.x.shape[2]
    short = SHORTER if select(call.terms, *VECTORS) else SHORT
    fits = batch * heads * queries * keys <= TILE
    return queries == 1 or (max(queries, keys) <= short and fits)


@functools.cache
def _log(level: int, text: str) -> None:
    logging.getLogger("pe_jax").log(level, "attention: %s", text)


def _module(name: str) -> Any:
    """The module of an engine; kernels are imported when they are used."""
    if name == "fused":
        from pe_jax.engines.gpu import engine
    elif name == "tpu":
        from pe_jax.engines.tpu import engine
    else:
        engine = {"dense": reference, "tiled": tiled}[name]
    return engine
