"""Ring attention: the tiled engine, its rows cut up among the devices of one mesh axis.

Liu et al., "Ring Attention with Blockwise Transformers", arXiv 2310.01889: each device keeps its
queries, and keys and values travel round the ring, one device a hop. What a hop computes is what
`tiled` computes, with the positions, indices and segments of the tokens that it meets; hops are
merged by the logarithms of their sums. The backward pass sends keys and values round once more, and
their gradients with them. Everything is linear in the tokens of a device, forward and backward.

Under a causal mask the last tokens see most: a device holds block i and block 2n - 1 - i of 2n, so
that all have equal work (Llama 3, arXiv 2407.21783, §3.3.2; Brandon et al., "Striped Attention",
arXiv 2311.09431, is another way). A sliding window is equal work for every token: blocks then lie
in order, and the ring stops at the farthest device that any window reaches.

b, h batch and heads on a device, n devices on the ring, T tokens of a row, F value width.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pe_jax.encodings.base import Params
from pe_jax.engines import tiled
from pe_jax.engines.dense import Rules, Tokens
from pe_jax.engines.layout import Dealt
from pe_jax.engines.plan import LOWEST, Plan, own
from pe_jax.engines.terms import alike
from pe_jax.engines.tiled import Cuts, Setup
from pe_jax.validation import require


@dataclasses.dataclass(frozen=True)
class Ring(Dealt):
    """How rows lie on a mesh, and the engine for them: `attention(…, implementation=Ring(mesh))`.

    Tokens, segments, positions, q, k and v are to lie as `spread` lays them.

    Attributes:
      mesh: the devices.
      axis: the mesh axis that shares the tokens of a row.
      batch: mesh axes that share the rows.
      heads: the mesh axis that shares the heads, or None.
      balanced: whether a device holds a block from either half of a row, for causal attention.
    """

    mesh: Mesh
    axis: str = "seq"
    batch: tuple[str, ...] = ()
    heads: str | None = None
    balanced: bool = True

    def __post_init__(self):
        for axis in self.axes:
            names = self.mesh.axis_names
            require(axis in names, "mesh axis", axis, f"use {names}")
        auto = all(kind == AxisType.Auto for kind in self.mesh.axis_types)
        require(auto, "mesh", self.mesh, "make its axes Auto (jax.make_mesh(…, axis_types=…))")

    @property
    def axes(self) -> tuple[str, ...]:
        """All that are named."""
        return self.axis, *self.batch, *((self.heads,) if self.heads else ())

    @property
    def devices(self) -> int:
        """On the ring: n."""
        return self.mesh.shape[self.axis]

    @property
    def blocks(self):
        """0, 2n - 1, 1, 2n - 2, …; in order, if not balanced."""
        first = np.arange(self.devices)
        return np.stack([first, 2 * len(first) - 1 - first], 1).ravel() if self.balanced else first

    def spread(self, x):
        """Block by block, sharded."""
        spec = PartitionSpec(self.batch or None, self.axis)
        return jax.lax.with_sharding_constraint(super().spread(x), NamedSharding(self.mesh, spec))

    @property
    def cuts(self) -> Cuts:
        """What each device has of a call."""
        rows = math.prod(self.mesh.shape[axis] for axis in self.batch)
        heads = self.mesh.shape[self.heads] if self.heads else 1
        runs = len(self.blocks) // self.devices
        return Cuts(len(self.blocks), runs, rows, heads, rows * heads, self.heads)

    def hops(self, rules: Rules, length: int) -> int:
        """How many devices back those keys are that are farthest, of all that any query sees."""
        size = length // len(self.blocks)
        first = size * self.blocks.reshape(self.devices, -1)
        ahead = first[:, None, :, None] - first[None, :, None, :]  # of the first tokens: [n, n, …]
        seen = np.ones(ahead.shape, bool)
        if rules.causal:
            seen &= ahead + size > 0
        if rules.window is not None and not rules.sinks:
            seen &= (ahead - size < rules.window - 1) & (-ahead - size < rules.window - 1)
        device, other = np.nonzero(seen.any((2, 3)))
        return int(((device - other) % self.devices).max())

    def __call__(self, rules: Rules, params: Params, operands: dict, q: Tokens, k: Tokens):
        """As `dense.attend`, for operands that lie as this says."""
        return attend(self, rules, params, operands, q, k)


class Call(NamedTuple):
    """What is static about one call."""

    ring: Ring
    rules: Rules
    setup: Setup
    hops: int

    def send(self, tree, distance: int = 1):
        """Every device's part to the device so far on."""
        n = self.ring.devices
        pairs = [(i, (i + distance) % n) for i in range(n)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.ring.axis, pairs), tree)

    def shard(self, f, given: dict, found: dict):
        """f(given) on each device: "params" whole, tokens [B or 1, T], the rest [B, H, T, …] cut.

        Nothing is left to the compiler: of the heads, which it could share too, the TPU's gathers
        all on each device.
        """
        ring = self.ring

        def spec(path, x):
            if path[0].key == "params":
                return PartitionSpec()
            if path[0].key == "tokens":
                return PartitionSpec(None if len(x) == 1 else ring.batch, ring.axis)
            return PartitionSpec(ring.batch, ring.heads, ring.axis)

        specs = functools.partial(jax.tree.map_with_path, spec)
        how = {"in_specs": (specs(given),), "out_specs": specs(found)}
        return jax.shard_map(f, mesh=ring.mesh, **how)(given)


def merge(a: dict, b: dict) -> dict:
    """Outputs over two sets of keys to the output over both; float32, as in `tiled.forward`."""
    top = jnp.maximum(a["lse"], b["lse"])
    x, y = (jnp.exp(one["lse"] - top) for one in (a, b))
    return {"out": (x * a["out"] + y * b["out"]) / (x + y), "lse": top + jnp.log(x + y)}


def _add(a, b):
    return jax.tree.map(jnp.add, a, b)


class Hop:
    """The queries of a device and the keys that visit it, as `tiled` wants them.

    Tables are made anew each hop, for the distances that occur in it: over all that occur in a row
    they would not shrink with the number of devices.
    """

    def __init__(self, call: Call, given: dict, visiting: dict):
        self.call, self.given, setup = call, given, call.setup
        tokens, params = {**given["tokens"], **visiting["tokens"]}, given["params"]
        q, k = tokens["q"], tokens["k"]
        self.plan = plan = Plan(call.rules, setup.terms, setup.gain, q, k, *setup.blocks)
        corners = plan.corners() if call.rules.contiguous else None
        own = functools.partial(jax.tree.map, setup.terms.own)
        tables = lambda p: own(setup.terms.tables(p, *setup.lengths, corners))  # noqa: E731
        tables, self.pull = jax.vjp(tables, params)
        self.diff = {**given["sides"], **visiting["sides"], "tables": tables}
        if not setup.terms.heads_apart:
            self.diff["params"] = params
        self.fixed = {"q_tokens": q, "k_tokens": k, "own": given["own"]}
        self.fixed["reach"] = own(plan.reach(params))

    def unless_hidden(self, f, nothing):
        """f(); or `nothing`, typed alike, where the mask hides the whole hop."""
        return jax.lax.cond(self.plan.sees(), f, lambda: alike(nothing, self.diff["q"]))

    def forward(self) -> dict:
        """As `tiled.forward`."""
        q, v = self.diff["q"], self.diff["v"]
        out = jnp.zeros((*q.shape[:3], v.shape[-1]), jnp.float32)
        nothing = {"out": out, "lse": jnp.full((*q.shape[:3], 1), LOWEST, jnp.float32)}
        call = self.call
        return self.unless_hidden(
            lambda: tiled.forward(call.rules, call.setup, self.diff, self.fixed), nothing
        )

    def backward(self, found: dict, d_out: jax.Array) -> dict:
        """Gradients, float32: of "params", of what "stays", of what "travels"."""
        call = self.call

        def f():
            how = call.rules, call.setup, self.diff, self.fixed
            grads = tiled.backward(*how, found, d_out)
            (params,) = self.pull(grads.pop("tables"))
            params = _add(params, grads.pop("params")) if "params" in grads else params
            grads = {name: x.astype(jnp.float32) for name, x in grads.items()}
            return {"params": params, **dict(zip(("stays", "travels"), _apart(grads), strict=True))}

        sides = {n: x for n, x in self.diff.items() if n not in ("tables", "params")}
        sides = _apart({name: jnp.zeros(x.shape, jnp.float32) for name, x in sides.items()})
        params = jax.tree.map(jnp.zeros_like, self.given["params"])
        return self.unless_hidden(
            f, {"params": params, **dict(zip(("stays", "travels"), sides, strict=True))}
        )


def _apart(named: dict) -> tuple[dict, dict]:
    """What is of the queries, and what is of the keys and travels."""
    keys = {name: x for name, x in named.items() if name[0] in "kv"}
    return {name: x for name, x in named.items() if name not in keys}, keys


def _begin(given: dict) -> tuple[dict, dict]:
    """What a device keeps, and what it sends round."""
    sides, tokens = (_apart(given[name]) for name in ("sides", "tokens"))
    params = alike(given["params"], given["sides"])
    kept = {**given, "sides": sides[0], "tokens": tokens[0], "params": params}
    return kept, {"sides": sides[1], "tokens": tokens[1]}


def _round(call: Call, own: dict, visit, carry):
    """Carry = visit(carry, keys of another device), hop by hop, while the next keys are sent."""

    def step(state, _):
        carry, visiting = state
        coming = call.send(visiting)
        return (visit(carry, visiting), coming), None

    if not call.hops:
        return carry
    # Unrolled, what the last hop would send is dropped: windows are worth it.
    start, unroll = (carry, call.send(own)), call.hops < 3
    return jax.lax.scan(step, start, length=call.hops, unroll=unroll)[0][0]


def _forward(call: Call, diff: dict, fixed: dict):
    def device(given):
        kept, own = _begin(given)
        hop = lambda visiting: Hop(call, kept, visiting).forward()  # noqa: E731
        return _round(call, own, lambda found, k: merge(found, hop(k)), hop(own))

    rows = (*diff["sides"]["q"].shape[:3], 1)
    found = dict.fromkeys(("out", "lse"), jax.ShapeDtypeStruct(rows, jnp.float32))
    found = call.shard(device, {**diff, **fixed}, found)
    return found["out"], (diff, fixed, found)


def _backward(call: Call, saved, d_out):
    diff, fixed, found = saved

    def device(given):
        kept, own = _begin(given)
        hop = lambda visiting: Hop(call, kept, visiting).backward(kept["found"], kept["d_out"])  # noqa: E731

        def visit(grads, visiting):
            coming = call.send(grads["travels"])
            return _add({**grads, "travels": coming}, hop(visiting))

        grads = hop(own)
        home = grads["travels"]  # the gradients of its own keys, by its own queries
        grads["travels"] = alike(jax.tree.map(jnp.zeros_like, home), home)
        grads = _round(call, own, visit, grads)
        home = _add(home, call.send(grads["travels"], -call.hops)) if call.hops else home
        params = jax.lax.psum(grads["params"], call.ring.axes)
        return {"params": params, "sides": {**grads["stays"], **home}}

    grads = call.shard(device, {**diff, **fixed, "found": found, "d_out": d_out}, diff)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grads, diff), None


_ring: Any = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(0,))
_ring.defvjp(_forward, _backward)


def attend(
    ring: Ring, rules: Rules, params: Params, operands: dict, q: Tokens, k: Tokens
) -> jax.Array:
    """As `tiled.attend`, for rows that lie as `ring` says; under jit.

    Raises:
      ValueError: a scheme that needs whole rows of scores; rows or tokens that do not divide among
        the devices.
    """
    length, cuts = operands["q"].shape[2], ring.cuts
    _check(ring, rules, operands, cuts)
    operands = tiled.factored(rules, params, operands, q, k)
    factored = "k_factor" in operands
    setup = tiled.arrange(rules, params, operands["q"], operands["k"], cuts, factored)
    sides, *tokens = tiled.prepare(setup, operands, q, k, cuts)
    call = Call(ring, rules, setup, ring.hops(rules, length))
    fixed = {"tokens": dict(zip("qk", tokens, strict=True))}
    fixed["own"] = own(rules, setup.gain, sides["q"], sides["k"])
    out = _ring(call, {"sides": sides, "params": params}, fixed)
    return tiled.stretch(out, 2, length // cuts.parts, cuts.parts)


def _check(ring: Ring, rules: Rules, operands: dict, cuts: Cuts) -> None:
    name = type(rules.encoding).__name__
    if rules.encoding.overrides("rescore"):
        raise ValueError(f"{name} needs whole rows of scores: leave out the ring (mesh.seq=1)")
    batch, _, length, _ = operands["q"].shape
    if batch % cuts.batch:
        raise ValueError(f"{batch} rows: must divide over the mesh axes {ring.batch}={cuts.batch}")
    if operands["k"].shape[1] % cuts.heads:
        kv_heads = operands["k"].shape[1]
        raise ValueError(f"{kv_heads} key heads: must divide over the mesh axis {cuts.share!r}")
    ring.order(length)  # raises where the tokens do not divide
