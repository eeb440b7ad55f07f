"""The forward and the backward pass over the tiles of a group of heads.

`Group` has the operands of a group and cuts tiles from them; `block` computes their scores. Both
passes visit a row's tiles stage by stage (`schedule`): forward an online softmax, backward each
tile again and its VJP. Neither depends on the encoding.

b, h batch and heads of the group, k its key heads, r, c rows and columns of a tile, T queries,
S keys, E and F widths of keys and values.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Tokens
from pe_jax.encodings.terms.diagonals import Line
from pe_jax.engines import block
from pe_jax.engines.block import LOWEST
from pe_jax.engines.tiled import schedule, shared_positions, skipping
from pe_jax.engines.tiled.plan import NonDiff, Operands, Plan, Result
from pe_jax.engines.tiled.schedule import Stage, Visit
from pe_jax.numerics import products
from pe_jax.numerics.arrays import varying_like


class Tile(NamedTuple):
    """Where a tile is."""

    stage: Stage
    i: Any  # block row
    j: Any  # block column


class Group(NamedTuple):
    """A group of heads: its operands, and the tiles to visit."""

    plan: Plan
    operands: Operands
    nondiff: NonDiff
    visits: tuple[Visit, ...]
    reach: Any  # bound on each query's products, [b, h, T, 1], if rows can stop early; or None

    @classmethod
    def of(cls, plan: Plan, operands: Operands, nondiff: NonDiff) -> "Group":
        """The group of these operands."""
        x, skip, reach = operands, None, None
        if plan.skips:
            skip = skipping.negligible_tiles(plan, x, nondiff)
        if plan.stops:
            reach = skipping.largest_product(x.q.x, x.k.x, plan.spec.scale_of(x.terms))
        visits = schedule.visits(plan, nondiff.q, nondiff.k, skip)
        return cls(plan, x, nondiff, visits, reach)

    # The operands of a tile, and where its gradients go.

    def cut(self, tile: Tile) -> Operands:
        """The operands of a tile, in float32."""
        x, rows = self.operands, self.plan.grid.rows
        q = jax.tree.map(lambda y: _cut(y, tile.i * rows, rows, 2), x.q)
        k, v = jax.tree.map(lambda y: _cut_block(y, tile.j, self.plan.grid.k_blocks), (x.k, x.v))
        tables = x.tables
        if not self.takes_whole_tables(tile):
            first, count = self.window(tile)
            tables = jax.tree.map(lambda y: _cut(y, first, count, 1), tables)
        q, k, v = jax.tree.map(lambda y: y.astype(jnp.float32), (q, k, v))
        return Operands(q, k, v, tables, x.terms)

    def add(self, total: Operands, grads: Operands, tile: Tile) -> Operands:
        """Adds a tile's gradients of all but the queries; k and v are `_transposed` in `total`."""
        k, v = jax.tree.map(
            lambda a, b: _add(a, b, tile.j * b.shape[3], 3),
            (total.k, total.v),
            _transposed((grads.k, grads.v)),
        )
        if self.takes_whole_tables(tile):
            tables = jax.tree.map(jnp.add, total.tables, grads.tables)
        else:
            first, _ = self.window(tile)
            tables = jax.tree.map(lambda a, b: _add(a, b, first, 1), total.tables, grads.tables)
        terms = jax.tree.map(jnp.add, total.terms, grads.terms)
        return Operands(None, k, v, tables, terms)

    def takes_whole_tables(self, tile: Tile) -> bool:
        """Whether a tile is compiled for its distances, and tables end at their horizons."""
        return self.plan.uniform and self.plan.one_by_one and not tile.stage.uniform

    def window(self, tile: Tile) -> tuple[Any, int]:
        """A tile's entries in tables that are cut for it: the first, and how many.

        The first is that of its greatest distance, the bottom left corner. Beyond the horizons a
        tile has one entry: the table's first or, where keys are ahead of queries, its last.
        """
        plan, (rows, columns) = self.plan, self.plan.grid[:2]
        gap = tile.i * rows - tile.j * columns if tile.stage.gap is None else tile.stage.gap
        if tile.stage.uniform:
            end = jnp.iinfo(jnp.int32).max  # clamped to the end of any table
            return 0 if plan.one_sided else jnp.where(gap > 0, 0, end), 1
        first = plan.gaps[0] if plan.uniform else plan.grid.lengths[0] - rows
        return first - gap, rows + columns

    def tokens(self, tile: Tile) -> tuple[Tokens, Tokens]:
        """The tokens of a tile's queries and keys."""
        sides = (
            (self.nondiff.q, tile.i, self.plan.grid.rows),
            (self.nondiff.k, tile.j, self.plan.grid.columns),
        )
        q, k = (
            jax.tree.map(lambda x, n=n, size=size: _cut(x, n * size, size, 1), side)
            for side, n, size in sides
        )
        return q, k

    # A tile.

    def scores(self, inputs: Operands, tile: Tile, before: tuple) -> tuple[jax.Array, tuple]:
        """Scores of a tile, LOWEST if hidden: float32 [b, h, r, c]; and the sums rows carry on."""
        q_tokens, k_tokens = self.tokens(tile)
        q, k = inputs.q._replace(tokens=q_tokens), inputs.k._replace(tokens=k_tokens)
        pairs = None
        if tile.stage.masked:
            pairs = block.visible(self.plan.spec, self.nondiff.masks, q_tokens, k_tokens)
        s, after = block.scores(
            self.plan.spec,
            inputs.terms,
            q,
            k,
            pairs,
            lines=self.lines(inputs, tile),
            before=before,
            multiply=functools.partial(products.multiply, self.operands.q.x.dtype),
            term_scores=shared_positions.scores if self.plan.alone else None,
        )
        return (s if pairs is None else jnp.where(pairs, s, LOWEST)), after

    def values(self, inputs: Operands, tile: Tile, weights: jax.Array) -> jax.Array:
        """What a tile with these weights adds to the output: float32 [b, h, r, F]."""
        tokens = self.tokens(tile)
        if self.nondiff.dropout is not None:
            weights = weights * self.nondiff.dropout.factors(*tokens)
        mean = functools.partial(products.average, self.operands.v.dtype)
        lines = self.lines(inputs, tile)
        return block.values(inputs.terms, weights, *tokens, inputs.v, lines=lines, average=mean)

    def lines(self, inputs: Operands, tile: Tile) -> tuple:
        """Each term's values along the tile's diagonals, or None."""
        plan, (rows, columns) = self.plan, self.plan.grid[:2]
        gap = tile.stage.gap
        if gap is None:
            gap = tile.i * rows - tile.j * columns
            gap = gap if self.nondiff.base is None else gap + self.nondiff.base
        lines = []
        for term, table in zip(inputs.terms, inputs.tables, strict=True):
            if not (plan.spec.in_order and isinstance(term, kinds.ByDistance)):
                lines.append(None)
            elif not isinstance(term, kinds.DistanceTerm):
                relative = jnp.arange(rows - 1, -columns - 1, -1, dtype=jnp.int32)
                lines.append(Line(term.at(gap + relative), rows - 1))
            elif not self.takes_whole_tables(tile):
                lines.append(Line(table, rows - 1))
            else:  # without the entries beyond the tile
                (low, high), n = plan.range_of(term), table.shape[1]
                offset, last = high - gap, low > 0 or not plan.one_sided
                first = min(max(offset - (rows - 1), 0), n - 1)
                end = max(min(offset + columns, n), first + 1)
                lines.append(Line(table[:, first:end], offset - first, last))
        return tuple(lines)

    # Which tiles.

    def visit(self, i: Any, f: Callable, carry: Any) -> Any:
        """The carry after f(tile, n, carry) for each tile n of a stage, for all stages of row i."""
        for stage, visit in zip(schedule.stages(self.plan), self.visits, strict=True):
            columns, count = visit.columns[i], visit.counts[i]

            def step(n, carry, stage=stage, columns=columns):
                return f(Tile(stage, i, columns[n]), n, carry)

            if stage.gap:  # XLA would hoist a loop's body, and run it in rows without such a tile
                once = functools.partial(step, 0)
                carry = jax.lax.cond(count > 0, once, lambda carry: carry, carry)
            else:
                carry = jax.lax.fori_loop(0, count, step, carry)
        return carry

    def visit_while(self, more: Callable, i: Any, f: Callable, carry: Any) -> tuple[Any, Any]:
        """As `visit` while more(carry), for sums along rows; the number visited, and the carry."""
        (stage,), (order,) = schedule.stages(self.plan), self.visits

        def goes_on(state):
            n, carry = state
            return (n < order.counts[i]) & more(carry)

        def step(state):
            n, carry = state
            return n + 1, f(Tile(stage, i, order.columns[i, n]), n, carry)

        return jax.lax.while_loop(goes_on, step, (jnp.zeros((), jnp.int32), carry))

    def goes_on(self, i: Any, before: tuple, weight: jax.Array) -> jax.Array:
        """Whether tiles farther left count for any row of block row i.

        If the plan stops early: whether a key there can matter; else whether the sums there are
        still unsettled. `before` are the sums that rows carry, `weight` [b, h, r, 1] the largest
        score of each row, or the logarithm of its sum.
        """
        first, size, terms = i * self.plan.grid.rows, self.plan.grid.rows, self.operands.terms
        if self.plan.stops:
            bias = _cut(self.reach, first, size, 2)
            states = jax.tree.map(lambda x: _cut(x, first, size, 2), self.operands.q.states)
            for term, state, carried in zip(terms, states, before, strict=True):
                if isinstance(term, kinds.RowTerm):
                    bias = bias + term.bias_of((state, None), carried)
            rows = bias - weight >= skipping.NEGLIGIBLE
        else:
            pairs = zip(terms, before, strict=True)
            unsettled = [~t.settled(x) for t, x in pairs if isinstance(t, kinds.RowTerm)]
            rows = functools.reduce(jnp.logical_or, unsettled)
        if self.nondiff.q.segments is not None:  # padding would never stop
            rows &= (_cut(self.nondiff.q.segments, first, size, 1) >= 0)[:, None, :, None]
        return rows.any()


def _cut(x: jax.Array, start: Any, size: int, axis: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _cut_block(x: jax.Array, j: Any, count: int) -> jax.Array:
    """Block j of `count` along axis 2, whose entries are tokens or blocks."""
    size = x.shape[2] // count
    return _cut(x, j * size, size, 2)


def _add(total: jax.Array, more: jax.Array, start: Any, axis: int) -> jax.Array:
    old = jax.lax.dynamic_slice_in_dim(total, start, more.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(total, old + more, start, axis)


def _transposed(tree: Any) -> Any:
    """[..., S, E] as [..., E, S]: the layout of products that give gradients of keys and values."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 2, 3), tree)


def _with_tile_states(
    plan: Plan, operands: Operands, nondiff: NonDiff
) -> tuple[Operands, Callable]:
    """The operands with what terms make for tiles, and what maps gradients of these back."""
    if not any(term.has_tile_states for term in operands.terms):
        return operands, lambda grads: grads

    def make(q, k):
        q, k = q._replace(tokens=nondiff.q), k._replace(tokens=nondiff.k)
        each = zip(operands.terms, zip(q.states, k.states, strict=True), strict=True)
        states = (term.tile_states(q, k, own, plan.grid.rows) for term, own in each)
        return tuple(zip(*states, strict=True))

    def pull_back(grads):
        sides, more = (grads.q, grads.k), pull((grads.q.states, grads.k.states))
        q, k = (
            x._replace(x=x.x + y.x, raw=jax.tree.map(jnp.add, x.raw, y.raw), states=y.states)
            for x, y in zip(sides, more, strict=True)
        )
        return grads._replace(q=q, k=k)

    sides = jax.tree.map(lambda x: x.astype(jnp.float32), (operands.q, operands.k))
    (q_states, k_states), pull = jax.vjp(make, *sides)
    q, k = operands.q._replace(states=q_states), operands.k._replace(states=k_states)
    return operands._replace(q=q, k=k), pull_back


# Forward.


class Running(NamedTuple):
    """The online softmax of a row of tiles: sums of exp(score - top) so far."""

    out: jax.Array
    top: jax.Array
    total: jax.Array


def forward(plan: Plan, operands: Operands, nondiff: NonDiff) -> Result:
    """Attention of a group over these keys alone."""
    operands, _ = _with_tile_states(plan, operands, nondiff)
    group = Group.of(plan, operands, nondiff)
    shape = *operands.q.x.shape[:2], plan.grid.rows
    start = Running(
        jnp.zeros((*shape, operands.v.shape[-1]), jnp.float32),
        # halfway to LOWEST: a hidden pair has the weight exp(LOWEST - LOWEST/2) = 0
        jnp.full((*shape, 1), LOWEST / 2, jnp.float32),
        jnp.zeros((*shape, 1), jnp.float32),
    )
    start = varying_like((start, block.start_of_rows(operands.terms, shape)), operands)

    def row(_, i):
        def visit(tile, n, carry):
            running, before = carry
            inputs = group.cut(tile)
            s, after = group.scores(inputs, tile, before)
            top = jnp.maximum(running.top, s.max(-1, keepdims=True))
            p, fade = jnp.exp(s - top), jnp.exp(running.top - top)
            out = running.out * fade + group.values(inputs, tile, p)
            return Running(out, top, running.total * fade + p.sum(-1, keepdims=True)), after

        def more(carry):
            running, before = carry
            return group.goes_on(i, before, running.top)

        if plan.stops:
            _, (running, _) = group.visit_while(more, i, visit, start)
        else:
            running, _ = group.visit(i, visit, start)
        out, top, total = running
        empty = total == 0
        total = jnp.where(empty, 1, total)
        return None, Result(out / total, jnp.where(empty, LOWEST, top + jnp.log(total)))

    _, rows = jax.lax.scan(row, None, jnp.arange(plan.grid.q_blocks, dtype=jnp.int32))
    return jax.tree.map(join_rows, rows)


# Backward.


class RowGradients(NamedTuple):
    """What the tiles of a row read in the backward pass: [b, h, r, …]."""

    d_out: jax.Array
    inner: jax.Array  # the part of each score's gradient that is the same for all keys
    lse: jax.Array


def backward(
    plan: Plan, operands: Operands, nondiff: NonDiff, result: Result, cotangent: Result
) -> Operands:
    """Gradients of a group, float32; `result` is over all keys, these or more."""
    operands, pull_states = _with_tile_states(plan, operands, nondiff)
    group = Group.of(plan, operands, nondiff)
    inner = (cotangent.out * result.out).sum(-1, keepdims=True) - cotangent.lse
    # a row that sees nothing: so large that its weights are 0 here too
    lse = jnp.where(result.lse > LOWEST / 2, result.lse, -LOWEST)
    all_rows, size = RowGradients(cotangent.out, inner, lse), plan.grid.rows
    no_sums = block.start_of_rows(operands.terms, (*operands.q.x.shape[:2], size))
    no_sums = varying_like(no_sums, operands)

    zeros = functools.partial(zeros_for, operands)

    def row(total, i):
        rows = jax.tree.map(lambda x: _cut(x, i * size, size, 2), all_rows)
        carried, count = _carried(group, i, rows.lse, no_sums)

        def visit(tile, n, carry):
            d_q, total, d_after = carry
            before = jax.tree.map(lambda x: x[n], carried)
            grads, d_before = _tile_gradients(group, tile, rows, before, d_after)
            d_q = jax.tree.map(jnp.add, d_q, grads.q)
            return d_q, group.add(total, grads, tile), d_before

        d_q = zeros(jax.tree.map(lambda x: _cut(x, 0, size, 2), operands.q))
        start = d_q, total, no_sums
        if plan.sums:  # from the left
            (stage,), (order,) = schedule.stages(plan), group.visits

            def step(n, carry):
                n = count - 1 - n
                return visit(Tile(stage, i, order.columns[i, n]), n, carry)

            d_q, total, _ = jax.lax.fori_loop(0, count, step, start)
        else:
            d_q, total, _ = group.visit(i, visit, start)
        return total, d_q

    k, v = _transposed((operands.k, operands.v))
    total = zeros(operands._replace(q=None, k=k, v=v))
    block_rows = jnp.arange(plan.grid.q_blocks, dtype=jnp.int32)
    total, d_q = jax.lax.scan(row, total, block_rows)
    k, v = _transposed((total.k, total.v))
    return pull_states(total._replace(q=jax.tree.map(join_rows, d_q), k=k, v=v))


def _tile_gradients(
    group: Group, tile: Tile, rows: RowGradients, before: tuple, d_after: tuple
) -> tuple[Operands, tuple]:
    """Computes a tile again, then the gradients of its operands and of the sums carried into it."""
    inputs = group.cut(tile)
    (s, _), pull = jax.vjp(lambda x, before: group.scores(x, tile, before), inputs, before)
    p = jnp.exp(s - rows.lse)
    _, pull_values = jax.vjp(lambda x, p: group.values(x, tile, p), inputs, p)
    d_inputs, d_p = pull_values(rows.d_out)
    d_scored, d_before = pull((p * (d_p - rows.inner), d_after))
    return jax.tree.map(jnp.add, d_inputs, d_scored), d_before


def _carried(group: Group, i: Any, lse: jax.Array, no_sums: tuple) -> tuple[tuple, Any]:
    """The sums that block row i carries into each of its tiles, [k_blocks, b, h, r, carry].

    Backward, the gradient of a sum from the right is a sum from the left. So the row is visited
    twice: from the right for these sums (one `carry` per row, tile and term), then from the left.
    Also returns how many tiles count.
    """
    plan = group.plan
    if not plan.sums:
        return no_sums, None

    def visit(tile, n, carry):
        sums, before = carry
        sums = jax.tree.map(lambda all, x: all.at[n].set(x), sums, before)
        return sums, group.scores(group.cut(tile), tile, before)[1]

    sums = jax.tree.map(lambda x: jnp.zeros((plan.grid.k_blocks, *x.shape), x.dtype), no_sums)
    start = varying_like((sums, no_sums), group.operands)

    def more(carry):
        return group.goes_on(i, carry[1], lse)

    count, (sums, last) = group.visit_while(more, i, visit, start)
    if plan.stops:
        return sums, count
    visited = jnp.arange(plan.grid.k_blocks, dtype=jnp.int32) < count
    visited = visited[:, None, None, None, None]
    sums = jax.tree.map(lambda x, y: jnp.where(visited, x, y), sums, last)
    return sums, group.visits[0].counts[i]


def join_rows(x: jax.Array) -> jax.Array:
    """[q_blocks, b, h, r, …] → [b, h, T, …]."""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def zeros_for(operands: Operands, like: Any) -> Any:
    """Float32 zeros of these shapes, to add gradients to, which vary over devices as operands."""
    arrays = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
    return varying_like(arrays, operands)
