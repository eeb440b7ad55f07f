"""Which engine runs a call: decided here and nowhere else."""

import difflib
import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

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
from pe_jax.engines.apart import Apart
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dense import Rules
from pe_jax.engines.dense import Tokens as OldTokens
from pe_jax.engines.layout import IN_ORDER, InOrder
from pe_jax.engines.plan import TILE, devices
from pe_jax.validation import require

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


def legacy_call(call: Call, encoding, params):
    """The call as engines of slots take it."""
    spec, _, q, k, v = call
    rules = Rules(
        encoding, spec.dims, spec.causal, spec.window, spec.aligned, spec.contiguous, spec.sinks
    )
    operands = {"q": q.x, "k": k.x, "v": v}
    if q.raw is not None:
        operands["q_raw"] = q.raw
    if k.raw is not None:
        operands["k_raw"] = k.raw
    if encoding.overrides("state"):
        rows = [x for x, t in zip(q.states, call.terms, strict=True) if t.state is not None]
        of_x = [t for t in call.terms if t.state is not None]
        rows = [x for x, t in zip(rows, of_x, strict=True) if t.state.of == "x"]
        operands["q_state"] = jnp.concatenate(rows, -1)
        if encoding.overrides("state_bias"):
            columns = [
                (q if x is None else k).states[i]
                for i, (x, t) in enumerate(zip(k.states, call.terms, strict=True))
                if t.state is not None and t.state.of == "x"
            ]
            operands["k_state"] = jnp.concatenate(columns, -1)
    tokens = [OldTokens(*side.tokens) for side in (q, k)]
    if spec.aligned and spec.contiguous and encoding.overrides("bias"):
        pass
    return rules, params, operands, *tokens


def engine(implementation, call: Call, name: str, legacy: Any) -> Callable:
    """The engine that runs the call. What is chosen here is logged once."""
    run = _pick(implementation, call, name, legacy)
    if getattr(run, "slots", False):

        def old(*call):
            return run(*legacy_call(Call(*call), *legacy)), None

        return old
    return run


def _slots(f):
    @functools.wraps(f)
    def run(*args):
        return f(*args)

    run.slots = True
    return run


def _pick(implementation, call: Call, name: str, legacy: Any) -> Callable:
    if isinstance(implementation, Apart):

        def of_each_device(*call):
            return engine(None, Call(*call), name, legacy)(*call)

        return functools.partial(implementation.run, of_each_device)
    if isinstance(implementation, InOrder):
        return _slots(implementation)
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
            why = _refusal(implementation, call, legacy)
            if why is not None:
                raise ValueError(f"implementation={implementation!r}: {why}; pass 'tiled' or None")
        return _attend(implementation)
    if _is_small(call):
        _log(logging.INFO, f"{name}: dense, for one query or a short sequence")
        return reference.attend
    if whole:
        _log(logging.WARNING, f"{name}: dense, O(L²) memory: it needs whole rows of scores")
        return reference.attend
    if device in KERNELS:
        why = _refusal(KERNELS[device], call, legacy)
        if devices(call.q.x, call.k.x, call.v) > 1:  # under jit XLA would gather its operands
            why = "several devices, among which XLA cannot divide a kernel"
        if why is None:
            _log(logging.INFO, f"{name}: the {KERNELS[device]} kernel")
            return _attend(KERNELS[device])
        _log(logging.WARNING, f"{name}: tiles of XLA, not the {KERNELS[device]} kernel: {why}")
        return _attend("tiled")
    _log(logging.INFO, f"{name}: tiled")
    return _attend("tiled")


def has_own_mask(implementation: Any) -> bool:
    """Whether an engine hides more than `causal` says."""
    return getattr(implementation, "has_own_mask", False)


def _refusal(name: str, call: Call, legacy) -> str | None:
    """Why a kernel cannot run here, or cannot run this call; None if it can."""
    device = jax.default_backend()
    if KERNELS.get(device) != name:
        needs = next(d for d, kernel in KERNELS.items() if kernel == name)
        return f"it needs a {needs.upper()}, this is a {device.upper()}"
    return _engine(name).refusal(*call)


def _is_small(call: Call) -> bool:
    """Whether all scores at once are no more than the tiled engine would hold."""
    (batch, heads, queries, _), keys = call.q.x.shape, call.k.x.shape[2]
    short = SHORTER if select(call.terms, *VECTORS) else SHORT
    fits = batch * heads * queries * keys <= TILE
    return queries == 1 or (max(queries, keys) <= short and fits)


@functools.cache
def _log(level: int, text: str) -> None:
    logging.getLogger("pe_jax").log(level, "attention: %s", text)


def _attend(name: str) -> Callable:
    attend = _engine(name).attend
    return _slots(attend) if name == "tiled" else attend


def _engine(name: str) -> Any:
    """The module of an engine; kernels are imported when they are used."""
    if name == "fused":
        from pe_jax.engines.gpu import engine
    elif name == "tpu":
        from pe_jax.engines.tpu import engine
    else:
        engine = {"dense": reference, "tiled": tiled}[name]
    return engine


def layout(implementation, q_index, k_index, q, k) -> InOrder:
    """How the tokens lie: an engine of several devices says so itself."""
    if not isinstance(implementation, InOrder):
        return IN_ORDER
    for name, index in {"q_index": q_index, "k_index": k_index}.items():
        fix = f"leave it out: {type(implementation).__name__} knows where tokens lie"
        require(index is None, name, "given", fix)
    if q.shape[-3] != k.shape[-3]:
        name = type(implementation).__name__
        raise ValueError(f"{q.shape[-3]} queries and {k.shape[-3]} keys: {name} is for one row")
    return implementation
