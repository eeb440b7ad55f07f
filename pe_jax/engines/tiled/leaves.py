"""What a way of evaluating terms hands to tiles: each cuts its part and adds its gradient."""

from typing import Any, NamedTuple

import jax


class Cut(NamedTuple):
    """The part of a leaf that a tile takes."""

    axis: int
    start: Any
    size: int


class Leaves(NamedTuple):
    """What a way has of a group's operands, by who reads it: pytrees, or None."""

    near: Any = None  # the scores of tiles that are not plain
    always: Any = None  # the scores of every tile
    values: Any = None  # the output of every tile
    row: Any = None  # what is multiplied once per row of tiles, see `row_products`


def cut_leaves(leaves: Any, cuts: Any) -> Any:
    """What a tile takes of a tree of leaves; `cuts` is a tree of the same form, or a prefix."""

    def cut(at: Cut | None, part):
        if at is None:
            return part
        return jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, at.start, at.size, at.axis), part
        )

    return jax.tree.map(cut, cuts, leaves, is_leaf=_is_cut)


def _is_cut(x) -> bool:
    return x is None or isinstance(x, Cut)


def add_leaves(totals: Leaves, part: Leaves, cuts: Leaves) -> Leaves:
    """Adds the gradients of one way's leaves where they were cut; None adds nothing."""
    added = (
        total if part is None else jax.tree.map(add_at, cut, total, part, is_leaf=_is_cut)
        for total, part, cut in zip(totals, part, cuts, strict=True)
    )
    return Leaves(*added)


def add_at(at: Cut | None, totals: Any, part: Any) -> Any:
    """Adds an array, or each of a tree of them, where `at` says."""

    def add(total, x):
        x = x.astype(total.dtype)
        if at is None:
            return total + x
        old = jax.lax.dynamic_slice_in_dim(total, at.start, at.size, at.axis)
        return jax.lax.dynamic_update_slice_in_dim(total, old + x, at.start, at.axis)

    return jax.tree.map(add, totals, part)
