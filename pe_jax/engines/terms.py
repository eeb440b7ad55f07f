"""What a scheme adds to a tile of scores beside q·k, in four ways, by what it declares.

* `Profile`: the bias is arithmetic (`coefficients`): computed in place, at any positions.
* `bands.Bands`: contiguous positions and a `horizon`: a tile beyond it gets constants; nearer ones
  read a band of products, q or k times the n vectors that differ, made once a call.
* `Windows`: contiguous positions, no horizon: a tile cuts the window of the distances that occur in
  it from tables over all of them, multiplies, and shears the products into place.
* `Pairwise`: any positions, any axes, a `bias` of absolute positions: evaluated pair by pair.

To each belongs what tokens bring along: their states, and the `factors` of a bias that has some.

`prepare` is a differentiable function from the operands of a group of heads to leaves, arrays by
kind. `cuts` says where tile (i, j) cuts the leaves of each kind; the gradient of a tile is added
back where it was cut and, at the end, goes back through `prepare`.

b, h batch and heads of the group, r, c rows and columns of a tile, m rows and columns of a
sub-block, n distances, E head width.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import DISTANCE_SLOTS, Params
from pe_jax.engines import dense
from pe_jax.engines.dense import Rules, Tokens, repeat_heads

ROW_SLOTS = ("relative_keys", "relative_state")  # vectors that meet a row
BROUGHT = ("state rows", "state columns", "factor rows", "factor columns")  # kinds of leaves


class Tile(NamedTuple):
    """Block row i, block column j, what is known of their tokens, and the view that scores them.

    `gap` is the distance of the first row and the first column, where positions are contiguous.
    """

    i: Any
    j: Any
    q: Tokens
    k: Tokens
    view: Any = 0
    gap: Any = 0


def shear(x: jax.Array) -> jax.Array:
    """y[…, r, c] = x[…, r, rows - 1 - r + c]: [..., rows, rows + columns - 1] → [..., r, c].

    A slice and two reshapes: each row begins one element earlier than the row above. XLA fuses them
    into the loop that reads y: no copy is made.
    """
    *lead, rows, width = x.shape
    if rows == 1:
        return x
    flat = x.reshape(*lead, rows * width)[..., rows - 1 : -1]
    return flat.reshape(*lead, rows, width - 1)[..., : width - rows + 1]


def evaluate(rules: Rules, params: Params, distance: jax.Array) -> dict[str, jax.Array]:
    """Every distance slot that the scheme has: float32 [H or 1, n] or [H or 1, n, E]."""
    enc, sizes = rules.encoding, {"distance_bias": [rules.dims]}
    found = {s: getattr(enc, s)(params, distance, *sizes.get(s, [])) for s in DISTANCE_SLOTS}
    return {slot: x.astype(jnp.float32) for slot, x in found.items() if x is not None}


def products(x: jax.Array, vectors: jax.Array) -> jax.Array:
    """X [b, h, T, E] times vectors [h or 1, n, E]: float32 [b, h, T, n]."""
    return jnp.matmul(x, jnp.swapaxes(vectors, -1, -2))


def _sheared(x: jax.Array, table: jax.Array, most: int) -> jax.Array:
    """y[…, r, c] = x_r · table[rows - 1 - r + c]: [b, h, r, E] and [h or 1, r + c - 1, E] → y.

    Rows take turns by `most`: each needs few products that the shear leaves out.
    """
    rows, columns = x.shape[2], table.shape[1] + 1 - x.shape[2]
    m = most if rows % most == 0 else rows
    starts = range(rows - m, -1, -m)
    windows = jnp.stack([table[:, a : a + m + columns - 1] for a in starts], axis=1)
    x = x.reshape(*x.shape[:2], rows // m, m, -1)
    y = shear(jnp.matmul(x, jnp.swapaxes(windows, -1, -2)))
    return y.reshape(*y.shape[:2], rows, columns)


def distances(rows: int, columns: int, gap) -> jax.Array:
    """Row minus column, plus `gap`: [r, c]."""
    places = (jnp.arange(n, dtype=jnp.int32) for n in (rows, columns))
    row, column = places
    return gap + row[:, None] - column[None]


def features(part: dict, tables: dict, scale: float) -> jax.Array:
    """What the `vectors` of a row are dotted with: scaled q, the state; float32 [b, h, T, E]."""
    found = []
    if "relative_keys" in tables:
        found.append(scale * part["q_raw"].astype(jnp.float32))
    if "relative_state" in tables:
        found.append(part["q_state"])
    return found[0] if len(found) == 1 else jnp.concatenate(found, axis=-1)


def vectors(tables: dict, heads: int) -> Any:
    """Of the slots whose vectors meet a row's `features`: [h or 1, …, E]; None without any."""
    found = [tables[slot] for slot in ROW_SLOTS if slot in tables]
    if len(found) < 2:
        return found[0] if found else None
    return jnp.concatenate([jnp.broadcast_to(x, (heads, *x.shape[1:])) for x in found], axis=-1)


def alike(tree, like):
    """`tree` typed as varying over the mesh axes that `like` varies over (inside shard_map)."""
    axes = frozenset().union(*(jax.typeof(x).mat.varying for x in jax.tree.leaves(like)))

    def one(x):
        more = tuple(axes - jax.typeof(x).mat.varying)
        return jax.lax.pcast(x, more, to="varying") if more else x

    return jax.tree.map(one, tree)


class Terms:
    """Nothing beside q·k, and what the four ways share: the biases of states and of factors.

    There are `blocks` rows of tiles. On a device of a ring they are `runs` contiguous runs of
    tokens, as many of queries as of keys and of one length, out of a row of `longest` tokens; and
    where devices along the mesh axis `share` have a part of the heads each, `own` picks it.
    """

    shape = (512, 512)  # rows and columns of a tile, where it is free to choose
    heads_apart = True  # a tile may hold some of the heads
    cheap = True  # worth a second copy in the program, for tiles that the mask leaves whole
    far_kinds: tuple[str, ...] = ("whole", "rows", "columns") + BROUGHT

    def __init__(
        self,
        rules: Rules,
        rows: int,
        columns: int,
        blocks: int,
        runs: int = 1,
        longest: int = 0,
        share: str | None = None,
    ):
        self.rules, self.rows, self.columns, self.blocks = rules, rows, columns, blocks
        self.runs, self.longest = runs, longest or rows * blocks + columns
        self.share = share
        self.scale = rules.encoding.scale(rules.dims.head_dim)

    def own(self, x: jax.Array, axis: int = 0) -> jax.Array:
        """Of x [..., H or 1, …], the heads of this device."""
        if self.share is None or x.shape[axis] == 1:
            return x
        here = x.shape[axis] // jax.lax.axis_size(self.share)
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(self.share) * here, here, axis)

    def tables(self, params: Params, queries: int, keys: int, corners: Any = None) -> dict:
        """What is evaluated once a call: each leaf [H or 1, ...].

        Args:
          params: the scheme's parameters.
          queries: tokens in a run of queries.
          keys: tokens in a run of keys.
          corners: int32 [runs, runs], the distance between the first tokens of each run of queries
            and each run of keys; None: one run of either, from 0.
        """
        return {}

    def prepare(self, part: dict, heads: int) -> dict:
        """What a group of `heads` has of the operands, "tables", "params" → leaves by kind.

        `values` gets the kinds that begin with "value", `near` the others, `far` those that it
        names in `far_kinds`.
        """
        leaves = {}
        if "k_state" in part:
            leaves |= {"state rows": part["q_state"], "state columns": part["k_state"]}
        if "k_factor" in part:
            columns = jnp.swapaxes(part["k_factor"], 2, 3)  # the faster way to multiply by
            leaves |= {"factor rows": part["q_factor"], "factor columns": columns}
        return leaves

    def cuts(self, tile: Tile) -> dict:
        """Kind → (axis, start, size) in a tile; a kind that is not named is taken whole."""
        rows, columns = (2, tile.i * self.rows, self.rows), (2, tile.j * self.columns, self.columns)
        found = {"rows": rows, "columns": columns, "state rows": rows, "state columns": columns}
        return found | {"factor rows": rows, "factor columns": (3, *columns[1:])}

    def beyond(self, low: jax.Array, high: jax.Array) -> jax.Array | None:
        """Whether a tile with distances from `low` to `high` is wholly beyond the horizon."""
        return None

    def brought(self, leaves: dict) -> Any:
        """The biases of a tile's states and factors: float32 [b, h, r, c], or None."""
        found = []
        if "state rows" in leaves:
            states = leaves["state rows"], leaves["state columns"]
            found.append(dense.state_bias(self.rules.encoding, *states))
        if "factor rows" in leaves:
            factors = leaves["factor rows"], leaves["factor columns"]
            found.append(jnp.matmul(*factors, precision=jax.lax.Precision.HIGHEST))
        return sum(found[1:], found[0]) if found else None

    def near(self, leaves: dict, tile: Tile) -> Any:
        """What else the scores of a tile get: float32 [b or 1, h, r, c], or None."""
        return None

    def far(self, leaves: dict, tile: Tile) -> Any:
        """Likewise, for less, in a tile that is wholly beyond the horizon."""
        return self.near(leaves, tile)

    def values(self, leaves: dict, weights: jax.Array, tile: Tile) -> Any:
        """What the weights [b, h, r, c] add to the output: float32 [b, h, r, E], or None."""
        return None

    def far_values(self, leaves: dict, weights: jax.Array, tile: Tile) -> Any:
        """Likewise in a tile that is wholly beyond the horizon."""
        return self.values(leaves, weights, tile)


class Profile(Terms):
    """A bias that is arithmetic on the distance."""

    def tables(self, params, queries, keys, corners=None):
        """The coefficients [H, C]."""
        return {"coefficients": self.rules.encoding.coefficients(params, self.rules.dims)}

    def prepare(self, part, heads):
        """The coefficients, [C, 1, h, 1, 1]."""
        rows = jnp.moveaxis(part["tables"]["coefficients"], 1, 0)[:, None, :, None, None]
        return {**super().prepare(part, heads), "whole": rows}

    def near(self, leaves, tile):
        """The profile of every pair."""
        distance = dense.pairwise(self.rules, tile.q.positions, tile.k.positions)
        return self.rules.encoding.profile(leaves["whole"], distance[:, None])


class Pairwise(Terms):
    """Everything pair by pair, as the dense engine has it."""

    heads_apart = False
    cheap = False

    def prepare(self, part, heads):
        """The vectors before rotation, the states, and the parameters."""
        raw = {"rows": ("q_raw", "q_state"), "columns": ("k_raw",)}
        found = {kind: {n: part[n] for n in names if n in part} for kind, names in raw.items()}
        found |= {"whole": part["params"], "value whole": part["params"]}
        return {**super().prepare(part, heads), **found}

    def _pairs(self, params, tile):
        return dense.Pairs(self.rules, params, tile.q.positions, tile.k.positions, self.own)

    def near(self, leaves, tile):
        """Every score term."""
        terms, enc = self._pairs(leaves["whole"], tile), self.rules.encoding
        s, rows = terms.bias(), leaves["rows"]
        if "q_raw" in rows:
            s += self.scale * terms.keys(rows["q_raw"])
        if "k_raw" in leaves["columns"]:
            k, sizes = leaves["columns"]["k_raw"], self.rules.dims
            s += self.scale * terms.queries(
                repeat_heads(k, k.shape[1] * sizes.heads // sizes.kv_heads)
            )
        if "q_state" in rows:
            s += terms.states(rows["q_state"])
        if enc.overrides("bias") and "factor rows" not in leaves:
            at = tile.q.positions, tile.k.positions
            s += self.own(enc.bias(leaves["whole"], *at, self.rules.dims), axis=-3)
        return s

    def values(self, leaves, weights, tile):
        """Weights times relative values."""
        found = self._pairs(leaves["value whole"], tile).values(weights)
        return found if isinstance(found, jax.Array) else None


class Windows(Terms):
    """Tables over the distances of contiguous positions, the largest first."""

    cheap = False
    sub = 256  # rows that share a window: it is that much wider than the tile

    def tables(self, params, queries, keys, corners=None):
        """Every slot over all T + S - 1 distances; zeros for those that the mask always hides.

        Of several runs: over the distances of each pair of runs, one after the other.
        """
        future = not (self.rules.causal and self.rules.aligned)
        last = 1 - keys if future or corners is not None else 0
        distance = jnp.arange(queries - 1, last - 1, -1, dtype=jnp.int32)
        if corners is not None:
            distance = (corners[..., None] + distance).reshape(-1)
            distance = distance if future else jnp.maximum(distance, 0)  # anything will do there
        length = self.runs**2 * (queries + keys - 1)
        found = evaluate(self.rules, params, distance)
        return {slot: dense.fit(x, 1, length) for slot, x in found.items()}

    def prepare(self, part, heads):
        """A bias becomes one more channel of the vectors dotted with q, where q has a 1."""
        tables, leaves = dict(part["tables"]), super().prepare(part, heads)
        bias, keys = tables.pop("distance_bias", None), vectors(tables, heads)
        if keys is not None:
            leaves["rows"] = features(part, tables, self.scale)
            tables = {s: x for s, x in tables.items() if s not in ROW_SLOTS} | {"keys": keys}
        if bias is not None:
            one = jnp.ones((1, 1, self.rows * self.blocks, 1), jnp.float32)
            bias = bias[..., None]
            if keys is not None:
                q = leaves["rows"]
                one = jnp.concatenate([q, jnp.broadcast_to(one, (*q.shape[:3], 1))], axis=-1)
                bias = jnp.concatenate([jnp.broadcast_to(keys, (heads, *keys.shape[1:])), bias], -1)
            leaves["rows"], tables["keys"] = one, bias
        if "relative_queries" in tables:
            k = repeat_heads(part["k_raw"], heads)
            leaves["columns"] = self.scale * k.astype(jnp.float32)
        if "relative_values" in tables:
            leaves["value window"] = tables.pop("relative_values")
        return {**leaves, "window": tables}

    def cuts(self, tile):
        """The window of r + c - 1 distances begins where the tile's top right corner is."""
        i, j, per, first = tile.i, tile.j, self.blocks // self.runs, 0
        if self.runs > 1:  # the tiles are square
            first = (i // per * self.runs + j // per) * (2 * per * self.rows - 1)
            i, j = i % per, j % per
        start = first + (per - 1 - i) * self.rows + j * self.columns
        window = (1, start, self.rows + self.columns - 1)
        return {**super().cuts(tile), "window": window, "value window": window}

    def near(self, leaves, tile):
        """Products with the window, sheared; seen from the keys, distances run backwards."""
        window, s = leaves["window"], 0.0
        if "rows" in leaves:
            s = _sheared(leaves["rows"], window["keys"], self.sub)
        if "columns" in leaves:
            turned = _sheared(leaves["columns"], window["relative_queries"][:, ::-1], self.sub)
            s += jnp.swapaxes(turned, -1, -2)
        return s

    def values(self, leaves, weights, tile):
        """The weights, sheared back, times the window."""
        table = leaves.get("value window")
        if table is None:
            return None
        zeros = jnp.zeros((*weights.shape[:3], table.shape[-1]), jnp.float32)
        zeros = alike(zeros, (weights, table))
        return jax.vjp(lambda x: _sheared(x, table, self.sub), zeros)[1](weights)[0]
