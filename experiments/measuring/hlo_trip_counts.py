"""Iterations of the tiled engine's loops, which depend on the mask and so are known at run time."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import masks
from pe_jax.encodings.terms import Tokens, sums_rows
from pe_jax.encodings.windowed import Windowed, attention_layers
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.sharded import ring
from pe_jax.engines.sharded.layout import CONTIGUOUS, BlockPermuted, Contiguous
from pe_jax.engines.sharded.tile_hops import Partition
from pe_jax.engines.tiled import schedule
from pe_jax.engines.tiled.plan import fill_tokens, make_plan
from pe_jax.models.config import ModelConfig


class Tiles(NamedTuple):
    """How many tiles the tiled engine visits in one program.

    Attributes:
      turns: iterations of the loops over a row's tiles, one number per stage (`schedule.stages`),
        the mean over rows. Layers with fewer stages have the last of them.
      share: the fraction of all tiles that is visited.
    """

    turns: tuple[float, ...] = ()
    share: float = 1.0


def tiles(
    model: ModelConfig, batch: int, length: int, layout: Contiguous = CONTIGUOUS, devices: int = 1
) -> Tiles:
    """The tiles of a training step, if each row of tokens is one document.

    Tiles that a decaying bias skips depend on the data: they are counted.
    """
    layers = [model.windows[n] for n in attention_layers(model.windows)]
    tiled = [x for x in layers if not sums_rows(model.terms_of(x))]
    layer_tiles = [_of_layer(layer, model, batch, length, layout, devices) for layer in tiled]
    if not layer_tiles:
        return Tiles()
    from_last = itertools.zip_longest(*(layer.turns[::-1] for layer in layer_tiles))
    turns = [float(np.mean([x for x in stage if x is not None])) for stage in from_last]
    return Tiles(tuple(turns[::-1]), float(np.mean([layer.share for layer in layer_tiles])))


def _of_layer(
    layer: Windowed,
    model: ModelConfig,
    batch: int,
    length: int,
    layout: Contiguous,
    devices: int,
) -> Tiles:
    """The tiles of a layer.

    On a ring the mean is over its hops too, as every device gets the keys of all others, and over
    the pairs of runs that meet in a hop.
    """
    dims = layer.layer_dims(model.dims)
    sizes = layer.span, layer.sinks
    spec = AttentionSpec(dims, model.causal, *sizes, aligned=True, contiguous=True)
    chunks = () if layer.chunk is None else (masks.chunks(layer.chunk),)
    on_ring = isinstance(layout, BlockPermuted)
    split = ring.partition(layout) if on_ring else Partition(1, 1, 1, 1)
    run = length // split.runs_per_row
    queries = batch // split.batch, dims.heads // split.heads, run
    keys = dims.kv_heads // split.heads, run
    plan = make_plan(
        spec,
        model.terms_of(layer) + chunks,
        queries,
        keys,
        devices=1 if on_ring else devices,
        segments=False,
        on_ring=on_ring,
    )
    order: Any = np.asarray(layout.order(length))[None]
    tokens = Tokens(order, order)
    sides = jax.tree.map(
        lambda x: jnp.asarray(x).reshape(split.runs_per_row, 1, -1),
        fill_tokens(plan, tokens, tokens, split.runs_per_row),
    )

    @jax.vmap
    def counts(pair):
        q, k = (
            jax.tree.map(lambda x, i=i: x[i], side) for side, i in zip(sides, pair, strict=True)
        )
        return [visit.counts for visit in schedule.visits(plan, q, k)]

    hops = ring.hops(layout, spec, length) if on_ring else 0
    runs = np.arange(split.runs_per_row).reshape(-1, split.runs)  # of each device
    pairs = [
        pair
        for back in range(hops + 1)
        for query_runs, key_runs in zip(runs, np.roll(runs, back, axis=0), strict=True)
        for pair in itertools.product(query_runs, key_runs)
    ]
    turns = tuple(float(count.mean()) for count in counts(jnp.asarray(pairs)))
    return Tiles(turns, sum(turns) / plan.grid.k_blocks)
