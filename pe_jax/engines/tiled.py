"""The tiled engine: the scores of `dense`, tile by tile, forward and backward, in O(L) memory.

An online softmax over key blocks (Milakov & Gimelshein, arXiv 1805.02867; FlashAttention, arXiv
2205.14135), with a custom VJP that recomputes each tile. What a scheme adds to a tile is the
business of `terms`; which tiles there are, that of `plan`. A row of tiles is visited in two loops:
first those that the mask leaves whole and that lie beyond the scheme's horizon, then the others.

b, h batch and heads of a group, r, c rows and columns of a tile, T queries, S keys, F value width.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import DISTANCE_SLOTS, Params
from pe_jax.engines import plan as plans
from pe_jax.engines.bands import Bands
from pe_jax.engines.dense import Rules, Tokens, average, repeat_heads
from pe_jax.engines.plan import LOWEST, Groups, Plan
from pe_jax.engines.terms import Pairwise, Profile, Terms, Tile, Windows, alike


class Setup(NamedTuple):
    """What is static about one call; `gain` is the factor that q·k still needs."""

    terms: Terms
    gain: float
    groups: Groups
    blocks: tuple[int, int]  # rows and columns of tiles
    lengths: tuple[int, int]  # tokens in a run of queries, of keys, to the end of its last tile


class Cuts(NamedTuple):
    """How a call is cut up among devices: not at all, or as `ring` has it.

    Attributes:
      parts: contiguous runs of tokens that a row is cut into.
      runs: those that one device holds.
      batch: devices that share the batch, each with rows of its own.
      heads: devices that share the heads, each with some of its own, along the mesh axis `share`.
      devices: those that share batch and heads, so or by the compiler.
      share: see `heads`.
    """

    parts: int = 1
    runs: int = 1
    batch: int = 1
    heads: int = 1
    devices: int = 1
    share: str | None = None


def _cut(leaves: dict, cuts: dict) -> dict:
    """The part of each leaf that a tile takes."""

    def one(kind, x):
        if kind not in cuts:
            return x
        axis, start, size = cuts[kind]
        return jax.lax.dynamic_slice_in_dim(x, start, size, axis)

    return {k: jax.tree.map(functools.partial(one, k), leaf) for k, leaf in leaves.items()}


def _add(total: dict, part: dict, cuts: dict) -> dict:
    """Adds the gradient of a tile's leaves where they were cut."""

    def one(kind, t, x):
        x = x.astype(t.dtype)
        if kind not in cuts:
            return t + x
        axis, start, size = cuts[kind]
        old = jax.lax.dynamic_slice_in_dim(t, start, size, axis)
        return jax.lax.dynamic_update_slice_in_dim(t, old + x, start, axis)

    part = {k: jax.tree.map(functools.partial(one, k), total[k], x) for k, x in part.items()}
    return {**total, **part}


def _products(x: jax.Array, turned: jax.Array) -> jax.Array:
    """Rows [b, h, r, E] times columns [b, k, E, c]: float32 [b, h, r, c]."""
    return jnp.einsum(
        "bhre,bhec->bhrc",
        x,
        repeat_heads(turned, x.shape[1]),
        preferred_element_type=jnp.float32,
    )


def _scores(plan: Plan, leaves: dict, tile: Tile, q, k, general: bool):
    """Scores of a tile after the mask [b, h, r, c], and the pull of what the scheme added."""
    s = plan.gain * _products(q, k)
    near = {kind: x for kind, x in leaves.items() if not kind.startswith("value")}
    if not general:
        near = {kind: x for kind, x in near.items() if kind in plan.terms.far_kinds}

    def added(x) -> Any:
        found = (plan.terms.near if general else plan.terms.far)(x, tile), plan.terms.brought(x)
        found = [x for x in found if x is not None]
        return sum(found[1:], found[0]) if found else None

    more, pull = jax.vjp(added, near)
    s = s if more is None else s + more
    if general:
        s = jnp.where(plan.mask(tile), s, LOWEST)
    return s, None if more is None else lambda g: pull(unbroadcast(g, more.shape))[0]


def _values(plan: Plan, leaves: dict, tile: Tile, weights, general: bool):
    """What the weights add to the output beside weights·v, and what pulls its gradient back."""
    at = plan.terms.values if general else plan.terms.far_values
    leaves = {kind: x for kind, x in leaves.items() if kind.startswith("value")}
    return jax.vjp(lambda x, w: at(x, w, tile), leaves, weights)


def unbroadcast(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sums over the axes along which `shape` was broadcast."""
    axes = tuple(a for a, n in enumerate(shape) if n == 1 and x.shape[a] > 1)
    return x.sum(axes, keepdims=True) if axes else x


def _cut_block(x, i, size: int, axis: int = 2):
    return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis)


def _join(x):
    """[blocks, b, h, r, …] → [b, h, T, …]."""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _extras(part: dict) -> dict:
    names = "q_raw", "k_raw", "q_state", "k_state", "q_factor", "k_factor", "tables", "params"
    return {n: part[n] for n in names if n in part}


def _forward_group(plan: Plan, part: dict):
    """Output [b, h, T, F] and the logarithm of each row's sum [b, h, T, 1], float32.

    A row that sees nothing gets zeros, and `LOWEST`.
    """
    q, k, v = part["q"], plan.columns(part["k"]), part["v"]
    batch, heads, _, _ = q.shape
    leaves, skip = plan.terms.prepare(_extras(part), heads), plan.out_of_reach(part)
    turned = jnp.swapaxes(k, 2, 3)  # the faster way to multiply by

    def row(i):
        qi = _cut_block(q, i, plan.terms.rows)

        def visit(general, n, carry):
            out, top, total = carry
            tile = plan.tile(i, n)
            j, cut = tile.j, _cut(leaves, plan.terms.cuts(tile))
            kn = _cut_block(turned, n, plan.terms.columns, 3)
            s, _ = _scores(plan, cut, tile, plan.half(qi, tile.view), kn, general)
            new = jnp.maximum(top, s.max(-1, keepdims=True))
            p, fade = jnp.exp(s - new), jnp.exp(top - new)
            more = average(p, _cut_block(v, j, plan.terms.columns))
            extra, _ = _values(plan, cut, tile, p, general)
            more = more if extra is None else more + extra
            return out * fade + more, new, total * fade + p.sum(-1, keepdims=True)

        one = (batch, heads, plan.terms.rows, 1)
        # above LOWEST: what the mask hides has weight exp(LOWEST - LOWEST/2) = 0
        shapes = ((*one[:3], v.shape[-1]), 0), (one, LOWEST / 2), (one, 0)
        start = alike(tuple(jnp.full(*x, jnp.float32) for x in shapes), part)
        out, top, total = plan.visit(plan.order(i, skip), visit, start)
        empty = total == 0
        total = jnp.where(empty, 1, total)
        return out / total, jnp.where(empty, LOWEST, top + jnp.log(total))

    out, lse = jax.lax.map(row, jnp.arange(plan.nq, dtype=jnp.int32))
    return _join(out), _join(lse)


def _backward_group(plan: Plan, part: dict):
    """Gradients of `part`, one pass over the tiles; dk and dv grow as [b, k, E, S] (faster)."""
    q, k, v = part["q"], plan.columns(part["k"]), part["v"]
    batch, heads, _, width = q.shape
    extras = _extras(part)
    ready = lambda x: alike(plan.terms.prepare(x, heads), part)  # noqa: E731
    leaves, pull_prepare = jax.vjp(ready, extras)
    skip = plan.out_of_reach(part)
    turned, columns = [jnp.swapaxes(x, 2, 3) for x in (k, v)], plan.terms.columns
    inner = (part["d_out"] * part["out"]).sum(-1, keepdims=True)
    # of what sees nothing: a sum so large that the weights vanish again
    lse = jnp.where(part["lse"] > LOWEST / 2, part["lse"], -LOWEST)

    def keys(x, y):
        """X [b, h, r, c], y [b, h, r, E] → [b, k, E, c]: sums over rows and the heads of a key."""
        x = jnp.einsum("bhrc,bhre->bhec", x.astype(y.dtype), y, preferred_element_type=jnp.float32)
        return x.reshape(batch, k.shape[1], -1, *x.shape[2:]).sum(2)

    def row(carry, i):
        rows = (q, part["d_out"], inner, lse)
        qi, d_i, inner_i, lse_i = (_cut_block(x, i, plan.terms.rows) for x in rows)
        d_low = d_i.astype(v.dtype)

        def visit(general, n, carry):
            dq, total = carry
            tile = plan.tile(i, n)
            j, cuts, qn = tile.j, plan.terms.cuts(tile), plan.half(qi, tile.view)
            cut = _cut(leaves, cuts)
            kn, vj = (_cut_block(x, m, columns, 3) for x, m in zip(turned, (n, j), strict=True))
            s, pull_scores = _scores(plan, cut, tile, qn, kn, general)
            p, dp = jnp.exp(s - lse_i), _products(d_low, vj)
            d_cut = {}
            extra, pull_values = _values(plan, cut, tile, p, general)
            if extra is not None:
                d_cut, more = pull_values(d_i)
                dp += more
            ds = p * (dp - inner_i)
            if pull_scores is not None:
                d_cut = {**d_cut, **pull_scores(ds)}
            at = {"dk": (3, n * columns, columns), "dv": (3, j * columns, columns)}
            main = {"dk": plan.gain * keys(ds, qn), "dv": keys(p, d_low)}
            total = _add(total, {**main, **d_cut}, {**cuts, **at})
            dqn = plan.gain * average(ds, _cut_block(k, n, columns))
            return dq + plan.unhalf(dqn, tile.view), total

        start = jnp.zeros((batch, heads, plan.terms.rows, width), jnp.float32)
        start = alike(start, part), carry
        dq, carry = plan.visit(plan.order(i, skip), visit, start)
        return carry, dq

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), leaves)
    for name, x in (("dk", k), ("dv", v)):
        zeros[name] = jnp.zeros((*x.shape[:2], *x.shape[:1:-1]), jnp.float32)
    total, dq = jax.lax.scan(row, alike(zeros, part), jnp.arange(plan.nq, dtype=jnp.int32))
    dk, dv = (jnp.swapaxes(total.pop(name), 2, 3) for name in ("dk", "dv"))
    total = jax.tree.map(lambda g, x: g.astype(x.dtype), total, leaves)
    return {"q": _join(dq), "k": plan.uncolumns(dk), "v": dv, **pull_prepare(total)[0]}


def _each(rules: Rules, setup: Setup, diff: dict, fixed: dict, f) -> dict:
    """f(plan, part) of every group, put together."""

    def one(u):
        part = setup.groups.cut({**diff, **fixed}, u)
        tokens = part.pop("q_tokens"), part.pop("k_tokens")
        plan = Plan(rules, setup.terms, setup.gain, *tokens, *setup.blocks)
        return f(plan, part)

    if setup.groups.total == 1:
        return one(0)
    found = jax.lax.map(one, jnp.arange(setup.groups.total, dtype=jnp.int32))
    q, v = diff["q"], diff["v"]
    like = {
        **diff,
        "out": jnp.broadcast_to(v[:1, :1, :1], (*q.shape[:3], v.shape[-1])),
        "lse": q[..., :1],
    }
    join = setup.groups.join
    return {
        name: jax.tree.map(functools.partial(join, name), x, like[name])
        for name, x in found.items()
    }


def forward(rules: Rules, setup: Setup, diff: dict, fixed: dict) -> dict:
    """The output over these keys alone, and the logarithm of each row's sum of weights.

    Args:
      rules: the scheme and the mask.
      setup: as `arrange` gives it.
      diff: its operands, with "tables" or "params".
      fixed: "q_tokens", "k_tokens", "own" and "reach".

    Returns:
      "out" [B, H, T, F] and "lse" [B, H, T, 1], float32; 0 and `LOWEST` for what sees nothing.
    """

    def one(plan, part):
        out, lse = _forward_group(plan, part)
        return {"out": out, "lse": lse}

    return _each(rules, setup, diff, fixed, one)


def backward(rules: Rules, setup: Setup, diff: dict, fixed: dict, found: dict, d_out) -> dict:
    """Gradients of `diff` where `found` is the output over all keys, of which these may be some."""
    return _each(rules, setup, diff, {**fixed, **found, "d_out": d_out}, _backward_group)


def _save(rules: Rules, setup: Setup, diff: dict, fixed: dict):
    found = forward(rules, setup, diff, fixed)
    return found["out"], (diff, fixed, found)


def _restore(rules: Rules, setup: Setup, saved, d_out):
    diff, fixed, found = saved
    grads = backward(rules, setup, diff, fixed, found, d_out)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grads, diff), None


_tiled: Any = jax.custom_vjp(lambda *args: _save(*args)[0], nondiff_argnums=(0, 1))
_tiled.defvjp(_save, _restore)


def choose(rules: Rules, params: Params, factored: bool = False) -> type[Terms]:
    """How the scheme is evaluated in tiles: what it declares and the positions decide.

    Args:
      rules: the scheme and the mask.
      params: the scheme's parameters.
      factored: whether its bias of absolute positions, if it has one, comes as factors.
    """
    enc = rules.encoding
    slots = [s for s in DISTANCE_SLOTS if enc.overrides(s)]
    if enc.overrides("bias") and not factored:
        return Pairwise
    if not slots:
        return Terms
    if slots == ["distance_bias"] and enc.coefficients(params, rules.dims) is not None:
        return Profile
    if not rules.contiguous or enc.axes > 1:
        return Pairwise
    return Windows if enc.horizon() is None else Bands


def tile_sizes(way: type[Terms], q, k, cuts: Cuts) -> tuple[tuple[int, int], Groups]:
    """Rows and columns of a tile, and the groups."""
    (batch, heads, queries, _), kv_heads, keys = q.shape, k.shape[1], k.shape[2]
    queries, keys = queries // cuts.parts, keys // cuts.parts
    if plans.alone(cuts.parts * cuts.devices) and way.heads_apart:
        rows, columns = plans.block_sizes(way.shape, 1, queries, keys)
        b, h = plans.group_sizes(batch, heads, kv_heads, rows * columns)
    else:
        b, h = batch // cuts.batch, heads // cuts.heads
        pairs = -(-batch * heads // cuts.devices)
        rows, columns = plans.block_sizes(way.shape, pairs, queries, keys)
    return (rows, columns), Groups(batch // cuts.batch // b, heads // cuts.heads // h, b, h)


def arrange(rules: Rules, params: Params, q, k, cuts: Cuts, factored: bool = False) -> Setup:
    """What is static about a call.

    Args:
      rules: the scheme and the mask.
      params: the scheme's parameters.
      q: [B, H, T, E]; shape and dtype alone are read.
      k: [B, K, S, E], likewise.
      cuts: how devices share the call.
      factored: as for `choose`.
    """
    way = choose(rules, params, factored)
    setup = _setup(rules, way, q, k, cuts)
    if way is Bands and cuts.parts > 1 and setup.lengths[0] * cuts.parts != q.shape[2]:
        return _setup(rules, Windows, q, k, cuts)  # blocks begin off the tiles
    return setup


def _setup(rules: Rules, way: type[Terms], q, k, cuts: Cuts) -> Setup:
    (rows, columns), groups = tile_sizes(way, q, k, cuts)
    queries, keys = (x.shape[2] // cuts.parts for x in (q, k))
    blocks = cuts.runs * -(-queries // rows), cuts.runs * -(-keys // columns)
    lengths = blocks[0] * rows // cuts.runs, blocks[1] * columns // cuts.runs
    longest = cuts.parts * max(lengths) + columns
    terms = way(rules, rows, columns, blocks[0], cuts.runs, longest, cuts.share)
    # in half precision a scaled q would be rounded again
    gain = 1.0 if q.dtype == jnp.float32 else terms.scale
    return Setup(terms, gain, groups, blocks, lengths)


def prepare(setup: Setup, operands: dict, q: Tokens, k: Tokens, cuts: Cuts):
    """Operands whose parts fill whole tiles (q scaled), and the tokens of either side likewise."""
    side = lambda name: setup.lengths[name[0] != "q"]  # noqa: E731
    diff: dict[str, Any] = {n: stretch(x, 2, side(n), cuts.parts) for n, x in operands.items()}
    if diff["q"].dtype == jnp.float32:
        diff["q"] = setup.terms.scale * diff["q"]
    return diff, *fill(setup, q, k, cuts)


def factored(rules: Rules, params: Params, operands: dict, q: Tokens, k: Tokens) -> dict:
    """The operands, with the factors of a bias of absolute positions where it has some."""
    factors: Any = rules.encoding.factors(params, q.positions, k.positions, rules.dims)
    if factors is None:
        return operands
    batch = operands["q"].shape[0]
    left, right = (jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in factors)
    return operands | {"q_factor": left, "k_factor": right}


def attend(rules: Rules, params: Params, operands: dict, q: Tokens, k: Tokens) -> jax.Array:
    """As `dense.attend`, in tiles; gradients reach operands and parameters, not positions."""
    operands = factored(rules, params, operands, q, k)
    queries = operands["q"].shape[2]
    cuts = Cuts(devices=plans.devices(operands["q"], operands["k"], operands["v"]))
    factored_bias = "k_factor" in operands
    setup = arrange(rules, params, operands["q"], operands["k"], cuts, factored_bias)
    diff, q, k = prepare(setup, operands, q, k, cuts)
    diff["tables"] = setup.terms.tables(params, *setup.lengths)
    if not setup.terms.heads_apart:
        diff["params"] = params
    diff = alike(diff, diff)
    reach = Plan(rules, setup.terms, setup.gain, q, k, *setup.blocks).reach(params)
    own = plans.own(rules, setup.gain, diff["q"], diff["k"])
    fixed = {"q_tokens": q, "k_tokens": k, "own": own, "reach": reach}
    return _tiled(rules, setup, diff, fixed)[:, :, :queries]


def stretch(x: jax.Array, axis: int, length: int, parts: int, **how) -> jax.Array:
    """Cuts or pads (as `jnp.pad` does by `how`) each of `parts` along an axis to `length`."""
    own = x.shape[axis] // parts
    if own == length:
        return x
    x = x.reshape(*x.shape[:axis], parts, own, *x.shape[axis + 1 :])
    if own > length:
        x = jax.lax.slice_in_dim(x, 0, length, axis=axis + 1)
    else:
        grow = [(0, (length - own) * (n == axis + 1)) for n in range(x.ndim)]
        x = jnp.pad(x, grow, **how)
    return x.reshape(*x.shape[:axis], parts * length, *x.shape[axis + 2 :])


def fill(setup: Setup, q: Tokens, k: Tokens, cuts: Cuts) -> tuple[Tokens, Tokens]:
    """Tokens whose parts fill whole tiles.

    Padding repeats the last position and, with a negative segment id, sees nothing.
    """

    def one(tokens: Tokens, length: int) -> Tokens:
        last = lambda x: stretch(x, 1, length, cuts.parts, mode="edge")  # noqa: E731
        segments = tokens.segments
        if segments is None:
            segments = jnp.zeros(tokens.index.shape, jnp.int32)
        rank = tokens.rank if tokens.rank is None else last(tokens.rank)
        segments = stretch(segments, 1, length, cuts.parts, constant_values=-1)
        return Tokens(last(tokens.positions), last(tokens.index), segments, rank)

    lengths = [cuts.parts * length for length in setup.lengths]
    if lengths == [x.index.shape[1] for x in (q, k)]:
        return q, k
    return one(q, setup.lengths[0]), one(k, setup.lengths[1])
