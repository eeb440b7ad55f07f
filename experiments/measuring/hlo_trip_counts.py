"""Iterations of the tiled engine's loops, which depend on the mask and so are known at run time."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pe_jax.engines.tiled.padding import fill_tokens
from pe_jax.engines.tiled.setup import set_up
from pe_jax.engines.tiled.tiles import CHOSEN, Partition

from pe_jax.encodings.base import Encoding, abstract_terms
from pe_jax.encodings.terms import Tokens, sums_rows
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.sharded import ring
from pe_jax.engines.sharded.layout import CONTIGUOUS, BlockPermuted, Contiguous
from pe_jax.engines.tiled import schedule
from pe_jax.models.config import ModelConfig


class Tiles(NamedTuple):
    """How many tiles the tiled engine visits in one program.

    Attributes:
      turns: iterations of the two loops over a row's tiles (whole ones, partly masked ones), the
        mean over rows.
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
    layers = zip(model.pattern, model.windows, strict=True)
    tiled = [x for x in layers if not sums_rows(abstract_terms(x[0], model.dims))]
    counts = [_turns(*layer, model, batch, length, layout, devices) for layer in tiled]
    if not counts:
        return Tiles()
    whole, partial, columns = (sum(x) / len(counts) for x in zip(*counts, strict=True))
    return Tiles((whole, partial), (whole + partial) / columns)


def _turns(
    encoding: Encoding,
    window: tuple[int | None, int],
    model: ModelConfig,
    batch: int,
    length: int,
    layout: Contiguous,
    devices: int,
):
    """Mean whole and partly masked tiles per row of tiles, and all tiles per row.

    On a ring the mean is over its hops too, as every device gets the keys of all others.
    """
    dims = model.dims
    spec = AttentionSpec(dims, model.causal, *window, aligned=True, contiguous=True)
    q: Any
    k: Any
    q, k = (
        jax.ShapeDtypeStruct((batch, heads, length, dims.head_dim), jnp.float32)
        for heads in (dims.heads, dims.kv_heads)
    )
    shared = isinstance(layout, BlockPermuted)
    partition = ring.partition(layout) if shared else Partition(devices=devices)
    setup = set_up(spec, abstract_terms(encoding, dims), q, k, partition, CHOSEN)
    order: Any = np.asarray(layout.order(length))[None]
    tokens, runs = Tokens(order, order), partition.runs_per_row
    devices = runs // partition.runs
    sides = jax.tree.map(
        lambda x: jnp.asarray(x).reshape(devices, 1, -1),
        fill_tokens(tokens, tokens, setup.grid.lengths, runs),
    )

    @jax.vmap
    def hop(pair):
        q, k = (jax.tree.map(lambda x: x[i], side) for side, i in zip(sides, pair, strict=True))  # noqa: B023
        rows = jnp.arange(setup.grid.q_blocks)
        return jax.vmap(lambda i: schedule.order(setup, q, k, i)[1:])(rows)

    far = ring.hops(layout, spec, length) if shared else 0
    device, back = np.divmod(np.arange(devices * (far + 1)), far + 1)
    plain, partial = hop(jnp.stack([device, (device - back) % devices], 1))
    return float(plain.mean()), float(partial.mean()), setup.grid.k_blocks
