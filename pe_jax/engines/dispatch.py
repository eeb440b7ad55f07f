"""Which engine runs a call: decided here and nowhere else.

The choice depends on the requested implementation, the layout of tokens on devices, the mesh in
force, the kinds of terms and the length.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.export

from pe_jax.encodings import terms as kinds
from pe_jax.engines import reference, tiled
from pe_jax.engines.attention_spec import Call
from pe_jax.engines.kernels import self_check
from pe_jax.engines.sharded import ring, rows
from pe_jax.engines.sharded.layout import BlockPermuted, Contiguous, RowSharded
from pe_jax.engines.tiled import Tiled
from pe_jax.engines.tiled.sizes import CHOSEN, TileSizes, devices
from pe_jax.engines.tiled.sizes import MOST as TILE
from pe_jax.validation import nearest

IMPLEMENTATIONS = ("dense", "tiled", "fused", "cudnn", "tpu", "splash")
KERNELS = {"gpu": "fused", "tpu": "tpu"}  # platform → our kernels …
STOCK = {"gpu": "cudnn", "tpu": "splash"}  # … and the stock kernels of cuDNN and JAX
# Calls up to these sizes are dense. On CPU, by training steps of 16 rows and 4 heads
# of 16 (tiled ÷ dense): 64 tokens, 2¹⁸ scores, RoPE 1.07, T5 0.95, FoX 1.10, DeBERTa 1.32;
# 128 tokens 0.78, 0.66, 0.93, 0.91; 256 tokens 0.70, 0.46, 0.71, 0.86.
FEW = 512, 2**18
# Where nothing is added to q·k, in wide heads: attention of 4 rows and 4 heads of 64 took 0.75 of
# the time of tiles at 256 tokens, a training step of 8 × 256 tokens and 6 heads of 64 0.91, and one
# of 8 × 512 tokens as long as with tiles.
FEW_OF_WIDE, WIDE = (256, 2**22), 64
# Vectors of every distance: steps of Transformer-XL took 0.86 (16 × 64 tokens) of the time of dense
# ones with tiles, 1.08 at 64 × 32.
FEW_OF_ALL_DISTANCES = 32, TILE
FEW_OF_KERNELS = 256, TILE  # on GPUs and TPUs: not measured


def engine(implementation: Any, layout: Contiguous, call: Call, name: str) -> Callable:
    """The engine that runs the call, a function of its operands. What is chosen is logged once.

    `implementation` is the requested one, or None; `name` is the encoding's, for messages.

    Raises:
      ValueError: the implementation is unknown, needs another device, or cannot run this call.
    """
    if isinstance(layout, BlockPermuted):
        sizes = _ring(implementation, layout, call, name)
        return functools.partial(ring.attend, layout, sizes)
    if isinstance(layout, RowSharded):

        def run(*operands, **options):
            return _of_whole_rows(implementation, Call(*operands, **options), name)(*operands)

        return functools.partial(rows.attend, layout, run, **call.options)
    return _of_whole_rows(implementation, call, name)


def _ring(implementation: Any, layout: BlockPermuted, call: Call, name: str) -> TileSizes:
    """The tiles that a ring runs: the requested ones, or those that suit the call."""
    if kinds.sums_rows(call.terms):
        raise ValueError(f"{name} needs whole rows of scores: leave out the ring (mesh.seq=1)")
    if call.dropout is not None or kinds.select(call.terms, kinds.Mask):
        kind = "Mask" if call.dropout is None else "Dropout"
        raise ValueError(f"a ring of devices has no {kind}: leave it out (mesh.seq=1)")
    if isinstance(implementation, Tiled):
        return implementation.sizes
    if implementation in (None, "tiled"):
        return CHOSEN
    raise ValueError(
        f"implementation={implementation!r} with layout={type(layout).__name__}: devices that"
        " share rows run a ring; leave it out, or pass 'tiled' or a Tiled(sizes)"
    )


def _of_whole_rows(implementation: Any, call: Call, name: str) -> Callable:
    """The requested engine, or the one that suits the call, with the call's options."""
    if callable(implementation) and not isinstance(implementation, type):
        run = implementation
    elif implementation is not None:
        _check(implementation, call, name)
        run = _module(str(implementation)).attend
    else:
        chosen, level, why = _choose(call)
        _log(level, f"{name}: {why}")
        run = _module(chosen).attend
    return functools.partial(run, **call.options) if call.options else run


def _choose(call: Call) -> tuple[str, int, str]:
    """The engine that suits the call, and the level and the text of its log message."""
    if call.mask is not None or call.bias is not None:
        return "dense", logging.INFO, "dense, for a mask or a bias of all pairs"
    if _is_small(call):
        return "dense", logging.INFO, "dense, for one query, a short sequence or a symbolic shape"
    if _is_dense(call):
        return "dense", logging.WARNING, f"dense, O(L²) memory: in tiles {tiled.NEEDS}"
    kernel, stock = (names.get(jax.default_backend()) for names in (KERNELS, STOCK))
    if kernel is None:
        return "tiled", logging.INFO, "tiled"
    several = devices(call.q.x, call.k.x, call.v) > 1
    disagreement = None
    if stock is not None and not several and call.dropout is None:
        kernels = _module(stock)
        if kernels.refusal(*call.operands) is None and kernels.is_faster(*call.operands):
            disagreement = self_check.disagreement(kernels, *call.operands)
            if disagreement is None:
                return stock, logging.INFO, f"the {stock} kernel"
    if several:  # under jit XLA would gather a kernel's operands
        reason = "several devices, among which XLA cannot divide a kernel"
    else:
        reason = _refusal(kernel, call)
    level, note = logging.INFO, ""
    if disagreement:
        level, note = logging.WARNING, f", not {stock}: {disagreement}"
    if reason is not None:
        return "tiled", logging.WARNING, f"tiles of XLA, not the {kernel} kernel: {reason}{note}"
    return kernel, level, f"the {kernel} kernel{note}"


def _is_dense(call: Call) -> bool:
    """Whether a term reads whole rows of scores, which only the dense engine has."""
    return any(term.whole_rows(call.spec) for term in call.terms)


def _is_small(call: Call) -> bool:
    """Whether all scores at once are few enough that tiles gain nothing."""
    (batch, heads, queries, width), keys = call.q.x.shape, call.k.x.shape[2]
    if any(map(jax.export.is_symbolic_dim, (batch, queries, keys))):
        return True  # tiles need known sizes: programs exported for any size are dense
    vectors = kinds.select(call.terms, kinds.DistanceVectors)
    added = any(not isinstance(term, kinds.Mask) for term in kinds.in_engine(call.terms))
    tokens, scores = FEW
    if jax.default_backend() in KERNELS:
        tokens, scores = FEW_OF_KERNELS
    elif any(term.horizon is None for term in vectors):
        tokens, scores = FEW_OF_ALL_DISTANCES
    elif width >= WIDE and not added:
        tokens, scores = FEW_OF_WIDE
    fits = batch * heads * queries * keys <= scores
    return queries == 1 or (max(queries, keys) <= tokens and fits)


def _check(implementation: Any, call: Call, name: str) -> None:
    """Raises ValueError where the engine of this name is unknown or cannot run the call."""
    argument = f"implementation={implementation!r}"
    if implementation not in IMPLEMENTATIONS:
        near = nearest(str(implementation), IMPLEMENTATIONS)
        raise ValueError(f"{argument} is unknown; did you mean {near!r}?")
    if _is_dense(call) and implementation != "dense":
        fix = f"{name} in tiles: {tiled.NEEDS}; pass 'dense' or None"
        raise ValueError(f"{argument}: {fix}")
    if implementation in (*KERNELS.values(), *STOCK.values()):
        reason = _refusal(implementation, call)
        if reason is not None:
            raise ValueError(f"{argument}: {reason}; pass 'tiled' or None")


def _refusal(kernel: str, call: Call) -> str | None:
    """Why a kernel must not run a call here; None if it may, after a trial on a similar call."""
    platform = jax.default_backend()
    if kernel not in (KERNELS.get(platform), STOCK.get(platform)):
        platforms = (*KERNELS.items(), *STOCK.items())
        needs = next(name for name, of_platform in platforms if of_platform == kernel)
        return f"it needs a {needs.upper()}, this is a {platform.upper()}"
    if call.dropout is not None:
        return "Dropout"
    kernels, operands = _module(kernel), call.operands
    return kernels.refusal(*operands) or self_check.disagreement(kernels, *operands)


def _module(name: str) -> Any:
    """The module of an engine; those of kernels are imported on first use."""
    if name == "fused":
        from pe_jax.engines.kernels.gpu import engine
    elif name == "cudnn":
        from pe_jax.engines.kernels.gpu import cudnn as engine
    elif name == "tpu":
        from pe_jax.engines.kernels.tpu import engine
    elif name == "splash":
        from pe_jax.engines.kernels.tpu import splash as engine
    else:
        engine = {"dense": reference, "tiled": tiled}[name]
    return engine


@functools.cache
def _log(level: int, text: str) -> None:
    logging.getLogger("pe_jax").log(level, "attention: %s", text)
