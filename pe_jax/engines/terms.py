"""What a scheme adds to a tile of scores beside q·k, in four ways, chosen by what it declares.

* `Profile`: the bias is arithmetic (`coefficients`): computed in place, at any positions.
* `Bands`: contiguous positions and a `horizon`: a tile beyond it gets constants; nearer ones read a
  band of products, q or k times the n vectors that differ, made once a call.
* `Windows`: contiguous positions, no horizon: a tile cuts the window of the distances that occur in
  it from tables over all of them, multiplies, and shears the products into place.
* `Pairwise`: any positions, any axes, a `bias` of absolute positions: evaluated pair by pair.

`prepare` is a differentiable function from the operands of a group of heads to leaves, arrays by
kind. `cuts` says where tile (i, j) cuts the leaves of each kind; the gradient of a tile is added
back where it was cut and, at the end, goes back through `prepare`.

b, h batch and heads of the group, r, c rows and columns of a tile, m rows and columns of a
sub-block, n distances, E head width.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import DISTANCE_SLOTS, Params
from pe_jax.engines import dense
from pe_jax.engines.dense import Rules, Tokens, repeat_heads

SUB_BLOCKS = (64, 128, 256)


class Tile(NamedTuple):
    """Block row i, block column j, and what is known of their tokens."""

    i: Any
    j: Any
    q: Tokens
    k: Tokens


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


def _products(x: jax.Array, vectors: jax.Array) -> jax.Array:
    """X [b, h, T, E] times vectors [h or 1, n, E]: float32 [b, h, T, n]."""
    return jnp.matmul(x, jnp.swapaxes(vectors, -1, -2))


def _distance(rows: int, columns: int, gap) -> jax.Array:
    return gap + jnp.arange(rows)[:, None] - jnp.arange(columns)[None]


class Terms:
    """Nothing beside q·k, and what the four ways share."""

    shape = (512, 512)  # rows and columns of a tile, where it is free to choose
    heads_apart = True  # a tile may hold some of the heads
    cheap = True  # worth a second copy in the program, for tiles that the mask leaves whole
    far_kinds: tuple[str, ...] = ("whole", "rows", "columns")

    def __init__(self, rules: Rules, rows: int, columns: int, blocks: int):
        self.rules, self.rows, self.columns, self.blocks = rules, rows, columns, blocks
        self.scale = rules.encoding.scale(rules.dims.head_dim)

    def tables(self, params: Params, queries: int, keys: int) -> dict:
        """What is evaluated once a call: each leaf [H or 1, ...]."""
        return {}

    def prepare(self, part: dict, heads: int) -> dict:
        """What a group of `heads` has of "q_raw", "k_raw", "tables", "params" → leaves by kind.

        `values` gets the kinds that begin with "value", `near` the others, `far` those that it
        names in `far_kinds`.
        """
        return {}

    def cuts(self, i, j) -> dict:
        """Kind → (axis, start, size) in tile (i, j); a kind that is not named is taken whole."""
        return {
            "rows": (2, i * self.rows, self.rows),
            "columns": (2, j * self.columns, self.columns),
        }

    def beyond(self, low: jax.Array, high: jax.Array) -> jax.Array | None:
        """Whether a tile with distances from `low` to `high` is wholly beyond the horizon."""
        return None

    def near(self, leaves: dict, tile: Tile) -> Any:
        """What the scores of a tile get: float32 [b or 1, h, r, c], or None."""
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

    def tables(self, params, queries, keys):
        """The coefficients [H, C]."""
        return {"coefficients": self.rules.encoding.coefficients(params, self.rules.dims)}

    def prepare(self, part, heads):
        """The coefficients, [C, h, 1, 1]."""
        return {"whole": jnp.moveaxis(part["tables"]["coefficients"], 1, 0)[..., None, None]}

    def near(self, leaves, tile):
        """The profile of every pair."""
        distance = dense.pairwise(self.rules, tile.q.positions, tile.k.positions)
        return self.rules.encoding.profile(leaves["whole"], distance[:, None])


class Pairwise(Terms):
    """Everything pair by pair, as the dense engine has it."""

    heads_apart = False
    cheap = False

    def prepare(self, part, heads):
        """The vectors before rotation, and the parameters."""
        raw = {"rows": "q_raw", "columns": "k_raw"}
        found = {kind: part[name] for kind, name in raw.items() if name in part}
        return {**found, "whole": part["params"], "value whole": part["params"]}

    def _pairs(self, params, tile):
        return dense.Pairs(self.rules, params, tile.q.positions, tile.k.positions)

    def near(self, leaves, tile):
        """Every score term."""
        terms, enc = self._pairs(leaves["whole"], tile), self.rules.encoding
        s = terms.bias()
        if "rows" in leaves:
            s += self.scale * terms.keys(leaves["rows"])
        if "columns" in leaves:
            columns = repeat_heads(leaves["columns"], self.rules.dims.heads)
            s += self.scale * terms.queries(columns)
        if enc.overrides("bias"):
            at = tile.q.positions, tile.k.positions
            s += enc.bias(leaves["whole"], *at, self.rules.dims)
        return s

    def values(self, leaves, weights, tile):
        """Weights times relative values."""
        found = self._pairs(leaves["value whole"], tile).values(weights)
        return found if isinstance(found, jax.Array) else None


class Windows(Terms):
    """Tables over the distances of contiguous positions, the largest first."""

    shape = (256, 1024)  # a window is rows + columns - 1 wide: little more than the tile
    cheap = False

    def tables(self, params, queries, keys):
        """Every slot over all T + S - 1 distances."""
        distance = jnp.arange(queries - 1, -keys, -1, dtype=jnp.int32)
        return evaluate(self.rules, params, distance)

    def prepare(self, part, heads):
        """A bias becomes one more channel of the vectors dotted with q, where q has a 1."""
        tables, leaves = dict(part["tables"]), {}
        bias, keys = (tables.pop(slot, None) for slot in ("distance_bias", "relative_keys"))
        if keys is not None:
            leaves["rows"] = self.scale * part["q_raw"].astype(jnp.float32)
            tables["keys"] = keys
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

    def cuts(self, i, j):
        """The window of r + c - 1 distances begins where the tile's top right corner is."""
        start = (self.blocks - 1 - i) * self.rows + j * self.columns
        window = (1, start, self.rows + self.columns - 1)
        return {**super().cuts(i, j), "window": window, "value window": window}

    def near(self, leaves, tile):
        """Products with the window, sheared; seen from the keys, distances run backwards."""
        window, s = leaves["window"], 0.0
        if "rows" in leaves:
            s = shear(_products(leaves["rows"], window["keys"]))
        if "columns" in leaves:
            turned = shear(_products(leaves["columns"], window["relative_queries"][:, ::-1]))
            s += jnp.swapaxes(turned, -1, -2)
        return s

    def values(self, leaves, weights, tile):
        """The weights, sheared back, times the window."""
        table = leaves.get("value window")
        if table is None:
            return None
        wide = jax.ShapeDtypeStruct((*weights.shape[:3], table.shape[1]), weights.dtype)
        (sheared,) = jax.linear_transpose(shear, wide)(weights)
        return jnp.matmul(sheared, table)


class Bands(Terms):
    """A band of n distances around the diagonal, and a constant on either side of it.

    Slots are measured from their value at the far end, which drops out of the softmax (the value
    slot and `relative_queries`, whose constant differs from key to key, keep it as a term of its
    own). A tile that meets the band is put together of sub-blocks of m × m, most of them zeros;
    where in the tile they lie is static, one branch for each `gap` between the tile's corner and
    the diagonal.

    The products of token t with distance d are at flat index t·W + hi - 1 - d (for keys: d - lo -
    1). A diagonal step of the tile is then W - 1 apart, so that a slice and a reshape are a shear;
    what a row reads beyond its n products is masked.
    """

    def __init__(self, rules, rows, columns, blocks):
        super().__init__(rules, rows, columns, blocks)
        self.lo, self.hi = rules.encoding.horizon()
        self.two_sided = not (rules.causal and rules.aligned)
        if not self.two_sided:  # distances below 0 are never seen
            self.lo, self.hi = -1, max(self.hi, 1)
        self.n = self.hi - self.lo - 1
        step = math.gcd(rows, columns)
        fits = [m for m in SUB_BLOCKS if max(self.hi, -self.lo) <= m < step and step % m == 0]
        self.m = fits[0] if fits else step
        self.width = max(self.n, self.m + 1)
        self.offsets = self._meeting(self.m, self.m, self.m)  # of the sub-blocks' diagonals
        self.gaps = self._meeting(rows, columns, step)

    def _meeting(self, rows: int, columns: int, step: int) -> range:
        """The gaps, multiples of `step`, at which a tile meets the band."""
        low, high = self.lo + 1 - (rows - 1), self.hi - 1 + columns - 1
        return range(-(-low // step) * step, high // step * step + 1, step)

    def tables(self, params, queries, keys):
        """The slots at hi - 1 … lo + 1, from their value at hi, and those at both ends."""
        near = evaluate(self.rules, params, jnp.arange(self.hi - 1, self.lo, -1, dtype=jnp.int32))
        ends = evaluate(self.rules, params, jnp.asarray([self.hi, self.lo], jnp.int32))
        return {
            "near": {slot: x - ends[slot][:, :1] for slot, x in near.items()},
            "far": {slot: x[:, 0] for slot, x in ends.items()},
            "step": {slot: x[:, 1] - x[:, 0] for slot, x in ends.items()},  # from hi to lo
        }

    def prepare(self, part, heads):
        """Bands of products, flat; tiles of the bias; the constants of rows and columns."""
        near, far, step = (part["tables"][name] for name in ("near", "far", "step"))
        leaves: dict = {"whole": {}, "columns": {}, "rows": {}}
        whole, rows, columns = leaves["whole"], leaves["rows"], leaves["columns"]
        if "distance_bias" in near:
            leaves["tiles"] = self._tiles(near["distance_bias"])
            whole["bias"] = step["distance_bias"][None, :, None, None]
        if "relative_keys" in near:
            q = self.scale * part["q_raw"].astype(jnp.float32)
            leaves["row band"] = self._band(q, near["relative_keys"])
            rows["keys"] = _products(q, step["relative_keys"][:, None])
        if "relative_queries" in near:
            k = self.scale * repeat_heads(part["k_raw"], heads).astype(jnp.float32)
            leaves["column band"] = self._band(k, near["relative_queries"][:, ::-1])
            columns["far"] = _products(k, far["relative_queries"][:, None])
            columns["step"] = _products(k, step["relative_queries"][:, None])
        if "relative_values" in near:
            leaves["value whole"] = tuple(x["relative_values"] for x in (near, far, step))
        if not self.two_sided:
            whole.pop("bias", None), rows.clear(), columns.pop("step", None)
        return leaves

    def _band(self, x, vectors):
        """The products, flat: [b, h, (1 + T + 3)·W]; a row of zeros before, three after."""
        x = jnp.pad(x, [(0, 0), (0, 0), (1, 3), (0, 0)])
        vectors = jnp.pad(vectors, [(0, 0), (0, self.width - self.n), (0, 0)])
        return _products(x, vectors).reshape(*x.shape[:2], -1)

    def _tiles(self, bias):
        """The tile at each gap, and one of zeros: [gaps + 1, h, r, c]."""
        first, last, m = self.offsets[0], self.offsets[-1], self.m
        table = jnp.pad(bias, [(0, 0), (last + m - self.hi, self.lo + m - first)])
        found = {}
        for offset in self.offsets:
            window = table[:, last - offset : last - offset + 2 * m - 1]
            found[offset] = shear(jnp.repeat(window[:, None], m, axis=1))[None]
        tiles = [self._assemble(gap, lambda s, a, b: found[s])[0] for gap in self.gaps]
        return jnp.stack([*tiles, jnp.zeros_like(tiles[0])])

    def _assemble(self, gap: int, block) -> jax.Array:
        """The tile of block(offset, a, b): [b, h, m, m] at sub-block (a, b), zeros off the band."""
        m, count = self.m, (self.rows // self.m, self.columns // self.m)
        one = block(self.offsets[0], 0, 0)
        rows = []
        for a in range(count[0]):
            offset = [gap + (a - b) * m for b in range(count[1])]
            inside = [b for b in range(count[1]) if offset[b] in self.offsets]
            middle = [block(offset[b], a, b) for b in inside]
            before = inside[0] * m if inside else self.columns
            after = self.columns - before - len(inside) * m
            sides = [jnp.zeros((*one.shape[:3], n), one.dtype) for n in (before, after)]
            rows.append(jnp.concatenate([sides[0], *middle, sides[1]], axis=-1))
        return jnp.concatenate(rows, axis=-2)

    def cuts(self, i, j):
        """Bands with their halo; the tile of the bias."""
        at = (i * self.rows - j * self.columns - self.gaps.start) // self.gaps.step
        at = jnp.where((at >= 0) & (at < len(self.gaps)), at, len(self.gaps))
        return {
            **super().cuts(i, j),
            "tiles": (0, at, 1),
            "row band": (2, i * self.rows * self.width, (self.rows + 4) * self.width),
            "column band": (2, j * self.columns * self.width, (self.columns + 4) * self.width),
        }

    def beyond(self, low, high):
        """From hi on, or up to lo."""
        return (low >= self.hi) | (high <= self.lo) if self.two_sided else low >= self.hi

    def _gap(self, tile):
        return tile.i * self.rows - tile.j * self.columns

    def _read(self, flat, first: int, blocks: int):
        """One diagonal of sub-blocks in a band: [b, h, blocks, m, m]; `first` is its flat start."""
        m, w = self.m, self.width
        flat = jax.lax.slice_in_dim(flat, w + first, w + first + blocks * m * w, axis=2)
        flat = flat.reshape(*flat.shape[:2], blocks, m * w)[..., : m * (w - 1)]
        return flat.reshape(*flat.shape[:3], m, w - 1)[..., :m]

    def _bands(self, leaves, tile):
        """The bands' part of the tile: [b, h, r, c], or None."""
        bands = [leaves[name] for name in ("row band", "column band") if name in leaves]
        if not bands:
            return None

        def at(gap: int, leaves):
            found: dict = {}
            for s in self.offsets:
                distance = _distance(self.m, self.m, s)
                inside = (distance > self.lo) & (distance < self.hi)
                if "row band" in leaves:
                    x = self._read(leaves["row band"], self.hi - 1 - s, self.rows // self.m)
                    found["row", s] = jnp.where(inside, x, 0)
                if "column band" in leaves:
                    x = self._read(leaves["column band"], s - self.lo - 1, self.columns // self.m)
                    found["column", s] = jnp.where(inside, jnp.swapaxes(x, -1, -2), 0)

            def block(s, a, b):
                parts = {"row": a, "column": b}
                x = [found[n, s][:, :, at] for n, at in parts.items() if (n, s) in found]
                return sum(x[1:], x[0])

            return self._assemble(gap, block)

        zeros = jnp.zeros((*bands[0].shape[:2], self.rows, self.columns), jnp.float32)
        branches = [functools.partial(at, gap) for gap in self.gaps] + [lambda _: zeros]
        which = self.cuts(tile.i, tile.j)["tiles"][1]
        return jax.lax.switch(which, branches, leaves)

    def _ends(self, leaves, below):
        """The constants of columns, and what is more where `below`: broadcasts to a tile; None."""
        whole, rows, columns = leaves["whole"], leaves["rows"], leaves["columns"]
        turn = lambda x: jnp.swapaxes(x, -1, -2)  # noqa: E731
        lower = [x for x in (whole.get("bias"), rows.get("keys")) if x is not None]
        lower += [turn(columns["step"])] if "step" in columns else []
        found = [jnp.where(below, sum(lower[1:], lower[0]), 0)] if lower else []
        found += [turn(columns["far"])] if "far" in columns else []
        return sum(found[1:], found[0]) if found else None

    def near(self, leaves, tile):
        """The bands, and the ends where they reach into the tile."""
        below = _distance(self.rows, self.columns, self._gap(tile)) <= self.lo
        found = [self._bands(leaves, tile), self._ends(leaves, below), leaves.get("tiles")]
        found = [x for x in found if x is not None]
        return sum(found[1:], found[0])

    def far(self, leaves, tile):
        """The ends alone."""
        return self._ends(leaves, self._gap(tile) < 0)

    def values(self, leaves, weights, tile):
        """The weights, gathered by distance, times what differs from the far end's value."""
        if "value whole" not in leaves:
            return None
        near, far, step = leaves["value whole"]
        size = (self.rows + 4) * self.width
        band = jax.ShapeDtypeStruct((*weights.shape[:2], size), weights.dtype)
        (band,) = jax.linear_transpose(lambda x: self._bands({"row band": x}, tile), band)(weights)
        band = band.reshape(*band.shape[:2], -1, self.width)[:, :, 1 : self.rows + 1, : self.n]
        out = jnp.matmul(band, near) + weights.sum(-1, keepdims=True) * far[:, None]
        if self.two_sided:
            below = _distance(self.rows, self.columns, self._gap(tile)) <= self.lo
            out += jnp.where(below, weights, 0).sum(-1, keepdims=True) * step[:, None]
        return out

    def far_values(self, leaves, weights, tile):
        """The sum of the weights times the end's value."""
        if "value whole" not in leaves:
            return None
        _, far, step = leaves["value whole"]
        vector = far + jnp.where(self._gap(tile) < 0, step, 0) if self.two_sided else far
        return weights.sum(-1, keepdims=True) * vector[:, None]


def choose(rules: Rules, params: Params) -> type[Terms]:
    """The way that the scheme and the positions allow."""
    enc = rules.encoding
    slots = [s for s in DISTANCE_SLOTS if enc.overrides(s)]
    if enc.overrides("bias"):
        return Pairwise
    if not slots:
        return Terms
    if slots == ["distance_bias"] and enc.coefficients(params, rules.dims) is not None:
        return Profile
    if not rules.contiguous or enc.axes > 1:
        return Pairwise
    return Windows if enc.horizon() is None else Bands
