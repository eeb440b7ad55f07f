"""How often the loops of the tiled engine turn: what the mask decides while a program runs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.base import Encoding
from pe_jax.engines import tiled
from pe_jax.engines.dense import Rules, Tokens
from pe_jax.engines.layout import IN_ORDER, InOrder
from pe_jax.engines.plan import Plan
from pe_jax.engines.ring import Ring
from pe_jax.models.config import ModelConfig


class Tiles(NamedTuple):
    """Of the tiled engine in one program: what its mask makes of its loops.

    Attributes:
      turns: of the two loops over a row's tiles, whole ones and others, on the mean over rows.
      share: of all tiles, those that are visited.
    """

    turns: tuple[float, ...] = ()
    share: float = 1.0


def tiles(
    model: ModelConfig, batch: int, length: int, layout: InOrder = IN_ORDER, devices: int = 1
) -> Tiles:
    """What the mask decides while a training step runs, if each row of tokens is one document.

    Of the tiles that a decaying bias leaves out nothing is known: they count.
    """
    tiled = [e for e in model.pattern if not e.overrides("rescore")]
    found = [_turns(encoding, model, batch, length, layout, devices) for encoding in tiled]
    if not found:
        return Tiles()
    whole, partial, columns = (sum(x) / len(found) for x in zip(*found, strict=True))
    return Tiles((whole, partial), (whole + partial) / columns)


def _turns(
    encoding: Encoding, model: ModelConfig, batch: int, length: int, layout: InOrder, devices: int
):
    """Tiles a row that the mask leaves whole, and in part, on the mean; and all there are.

    On a ring the mean is over its hops too, as every device meets the keys of all others.
    """
    dims = model.dims
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
    params = jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), shapes)
    rules = Rules(encoding, dims, model.causal, model.window or None, True, True, model.sinks)
    q, k = (
        jax.ShapeDtypeStruct((batch, heads, length, dims.head_dim), jnp.float32)
        for heads in (dims.heads, dims.kv_heads)
    )
    ring = isinstance(layout, Ring)
    cuts = layout.cuts if ring else tiled.Cuts(devices=devices)
    order: Any = np.asarray(layout.order(length))[None]
    factored = jax.eval_shape(lambda: encoding.factors(params, order, order, dims)) is not None
    setup = tiled.arrange(rules, params, q, k, cuts, factored)
    devices, tokens = cuts.parts // cuts.runs, Tokens(order, order, None)
    split = lambda x: jnp.asarray(x).reshape(devices, 1, -1)  # noqa: E731
    sides = jax.tree.map(split, tiled.fill(setup, tokens, tokens, cuts))

    @jax.vmap
    def hop(pair):
        q, k = (jax.tree.map(lambda x: x[i], side) for side, i in zip(sides, pair, strict=True))  # noqa: B023
        plan = Plan(rules, setup.terms, setup.gain, q, k, *setup.blocks)
        return jax.vmap(lambda i: plan.order(i, None)[1:])(jnp.arange(setup.blocks[0]))

    far = layout.hops(rules, length) if ring else 0
    device, back = np.divmod(np.arange(devices * (far + 1)), far + 1)
    whole, partial = hop(jnp.stack([device, (device - back) % devices], 1))
    return float(whole.mean()), float(partial.mean()), setup.blocks[1]
