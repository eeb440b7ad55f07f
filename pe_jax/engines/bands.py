"""A scheme with a horizon, in tiles: a band around the diagonal, and constants on either side.

b, h batch and heads of the group, r, c rows and columns of a tile, m rows and columns of a
sub-block, n distances in the band, W the width of the products of a token, E head width.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp

from pe_jax.engines.dense import repeat_heads
from pe_jax.engines.terms import (
    Terms,
    alike,
    distances,
    evaluate,
    features,
    products,
    shear,
    vectors,
)

SUB_BLOCKS = (64, 128, 256)


def linear_switch(which, branches, operand, default):
    """branches[which](operand), `default` (zeros) beyond them; each branch is linear.

    Its gradient is a switch of the transposed branches. The gradient of `jax.lax.switch` would
    trace each of them several times over and keep residuals that no linear function has.
    """
    bare = jax.tree.map(jnp.zeros_like, operand)

    @jax.custom_vjp
    def run(which, operand):
        return jax.lax.switch(which, [*branches, lambda _: default], operand)

    def backward(which, g):
        turned = [lambda g, f=f: jax.linear_transpose(f, operand)(g)[0] for f in branches]
        return None, linear_switch(which, turned, g, bare)

    run.defvjp(lambda which, operand: (run(which, operand), which), backward)
    return run(which, operand)


class Bands(Terms):
    """A band of n distances around the diagonal, and a constant on either side of it.

    Slots are measured from their value at the far end, which drops out of the softmax (the value
    slot and `relative_queries`, whose constant differs from key to key, keep it as a term of its
    own). Where the band is narrow, a tile that meets it is put together of sub-blocks of m × m,
    most of them zeros; where in the tile they lie is static, one branch for each `gap` between the
    tile's corner and the diagonal. Where it is wide, the tile is its own sub-block.

    The products of token t with distance d are at flat index t·W + hi - 1 - d (for keys: d - lo -
    1). A diagonal step of the tile is then W - 1 apart, so that a slice and a reshape are a shear;
    what a row reads beyond its n products is masked.
    """

    def __init__(self, rules, rows, columns, blocks, runs=1, longest=0, share=None):
        super().__init__(rules, rows, columns, blocks, runs, longest, share)
        horizon = rules.encoding.horizon()
        assert horizon is not None
        self.lo, self.hi = max(horizon[0], -self.longest), min(horizon[1], self.longest)
        self.two_sided = not (rules.causal and rules.aligned)
        if not self.two_sided:  # distances below 0 are never seen
            self.lo, self.hi = -1, max(self.hi, 1)
        self.n = self.hi - self.lo - 1
        step = math.gcd(rows, columns)
        fits = [m for m in SUB_BLOCKS if max(self.hi, -self.lo) <= m < step and step % m == 0]
        self.m = fits[0] if fits else step
        self.wide = self.m == rows == columns
        self.width = max(self.n, self.m + 1)
        self.offsets = self._meeting(self.m, self.m, self.m)  # of the sub-blocks' diagonals
        self.gaps = self._meeting(rows, columns, step)

    def _meeting(self, rows: int, columns: int, step: int) -> range:
        """The gaps, multiples of `step`, at which a tile meets the band."""
        low, high = self.lo + 1 - (rows - 1), self.hi - 1 + columns - 1
        return range(-(-low // step) * step, high // step * step + 1, step)

    def tables(self, params, queries, keys, corners=None):
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
        leaves: dict = {**super().prepare(part, heads), "whole": {}, "columns": {}, "rows": {}}
        whole, rows, columns = leaves["whole"], leaves["rows"], leaves["columns"]
        if "distance_bias" in near:
            leaves["tiles"] = self._tiles(near["distance_bias"])
            whole["bias"] = step["distance_bias"][None, :, None, None]
        if (keys := vectors(near, heads)) is not None:
            q = features(part, near, self.scale)
            leaves["row band"] = self._band(q, keys)
            rows["keys"] = products(q, vectors(step, heads)[:, None])
        if "relative_queries" in near:
            k = self.scale * repeat_heads(part["k_raw"], heads).astype(jnp.float32)
            leaves["column band"] = self._band(k, near["relative_queries"][:, ::-1])
            columns["far"] = products(k, far["relative_queries"][:, None])
            columns["step"] = products(k, step["relative_queries"][:, None])
        if "relative_values" in near:
            leaves["value whole"] = tuple(x["relative_values"] for x in (near, far, step))
        if not self.two_sided:
            for part in (whole, rows):
                part.clear()
            columns.pop("step", None)
        return leaves

    def _band(self, x, vectors):
        """The products, flat: [b, h, (1 + T + 3)·W]; a row of zeros before, three after."""
        x = jnp.pad(x, [(0, 0), (0, 0), (1, 3), (0, 0)])
        vectors = jnp.pad(vectors, [(0, 0), (0, self.width - self.n), (0, 0)])
        return products(x, vectors).reshape(*x.shape[:2], -1)

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

    def cuts(self, tile):
        """Bands with their halo; the tile of the bias."""
        gap, starts = tile.gap, [tile.i * self.rows, tile.j * self.columns]
        at = (gap - self.gaps.start) // self.gaps.step
        at = jnp.where((at >= 0) & (at < len(self.gaps)), at, len(self.gaps))
        sizes = [self.rows + 4, self.columns + 4]
        starts, sizes = [x * self.width for x in starts], [x * self.width for x in sizes]
        if self.wide:  # what the tile reads, and no more
            starts[0] += self.width + self.hi - 1 - gap
            starts[1] += self.width + gap - self.lo - 1
            sizes = [self.m * (self.width - 1)] * 2
        bands = zip(starts, sizes, strict=True)
        row, column = ((2, start, size) for start, size in bands)
        found = {"tiles": (0, at, 1), "row band": row, "column band": column}
        return {**super().cuts(tile), **found}

    def beyond(self, low, high):
        """From hi on, or up to lo."""
        return (low >= self.hi) | (high <= self.lo) if self.two_sided else low >= self.hi

    def _read(self, flat, first: int, blocks: int):
        """One diagonal of sub-blocks in a band: [b, h, blocks, m, m]; `first` is its flat start."""
        m, w = self.m, self.width
        if not self.wide:
            flat = jax.lax.slice_in_dim(flat, w + first, w + first + blocks * m * w, axis=2)
        flat = flat.reshape(*flat.shape[:2], blocks, -1)[..., : m * (w - 1)]
        return flat.reshape(*flat.shape[:3], m, w - 1)[..., :m]

    def _bands(self, leaves, tile):
        """The bands' part of the tile: [b, h, r, c], or None."""
        bands = [leaves[name] for name in ("row band", "column band") if name in leaves]
        if not bands:
            return None
        if self.wide:
            x = self._diagonal(leaves, 0, tile.gap)
            return sum(x[1:], x[0])[:, :, 0]

        def at(gap: int, leaves):
            found = {s: self._diagonal(leaves, s, s) for s in self.offsets}
            place = ["row band" in leaves, "column band" in leaves]

            def block(s, a, b):
                x = [
                    x[:, :, n]
                    for x, n in zip(found[s], itertools.compress((a, b), place), strict=True)
                ]
                return sum(x[1:], x[0])

            return self._assemble(gap, block)

        zeros = jnp.zeros((*bands[0].shape[:2], self.rows, self.columns), jnp.float32)
        zeros = alike(zeros, bands)
        branches = [functools.partial(at, gap) for gap in self.gaps]
        which = self.cuts(tile)["tiles"][1]
        return linear_switch(which, branches, leaves, zeros)

    def _diagonal(self, leaves, offset: int, gap):
        """What each band has for sub-blocks `gap` from the diagonal: [b, h, blocks, m, m]."""
        distance = distances(self.m, self.m, gap)
        inside = (distance > self.lo) & (distance < self.hi)
        found = []
        if "row band" in leaves:
            x = self._read(leaves["row band"], self.hi - 1 - offset, self.rows // self.m)
            found.append(jnp.where(inside, x, 0))
        if "column band" in leaves:
            x = self._read(leaves["column band"], offset - self.lo - 1, self.columns // self.m)
            found.append(jnp.where(inside, jnp.swapaxes(x, -1, -2), 0))
        return found

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
        below = distances(self.rows, self.columns, tile.gap) <= self.lo
        found = [self._bands(leaves, tile), self._ends(leaves, below), leaves.get("tiles")]
        found = [x for x in found if x is not None]
        return sum(found[1:], found[0])

    def far(self, leaves, tile):
        """The ends alone."""
        return self._ends(leaves, tile.gap < 0)

    def values(self, leaves, weights, tile):
        """The weights, gathered by distance, times what differs from the far end's value."""
        if "value whole" not in leaves:
            return None
        near, far, step = leaves["value whole"]
        size = (self.rows + 4) * self.width
        band = alike(jnp.zeros((*weights.shape[:2], size), weights.dtype), weights)

        def place(x):  # the rows of one block of tiles
            _, start, size = self.cuts(tile._replace(i=0, j=0))["row band"]
            cut = jax.lax.dynamic_slice_in_dim(x, start, size, axis=2)
            return self._bands({"row band": cut}, tile)

        (band,) = jax.vjp(place, band)[1](weights)
        band = band.reshape(*band.shape[:2], -1, self.width)[:, :, 1 : self.rows + 1, : self.n]
        out = jnp.matmul(band, near) + weights.sum(-1, keepdims=True) * far[None, :, None]
        if self.two_sided:
            below = distances(self.rows, self.columns, tile.gap) <= self.lo
            lower = jnp.where(below, weights, 0).sum(-1, keepdims=True)
            out += lower * step[None, :, None]
        return out

    def far_values(self, leaves, weights, tile):
        """The sum of the weights times the end's value."""
        if "value whole" not in leaves:
            return None
        _, far, step = leaves["value whole"]
        vector = far + jnp.where(tile.gap < 0, step, 0) if self.two_sided else far
        return weights.sum(-1, keepdims=True) * vector[None, :, None]
