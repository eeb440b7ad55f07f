"""Positions of the nodes of graphs: hops for biases, coordinates for rotations.

Graphormer (Ying et al., arXiv 2106.05234) adds a learned number to the score of two nodes for the
length of the shortest path between them: `hop_bias`, as `pe_jax.attention(…, bias=…)`. WIRE (Reid
et al., arXiv 2509.22259) rotates by the nodes' coordinates in the spectrum of the graph's
Laplacian: `spectrum`, as positions of `rope_mixed(axes=…)`. docs/borrow.md has both.

B graphs (any number of axes), N nodes, A axes of a position, H heads.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import align, require_array, take
from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.validation import is_int, python_ints, require


def _square(adjacency) -> jax.Array:
    adjacency = jnp.asarray(adjacency)
    shape = adjacency.shape
    square = adjacency.ndim >= 2 and shape[-1] == shape[-2]
    require(square, "adjacency.shape", shape, "pass [*B, N, N]: which nodes have an edge")
    return adjacency


@python_ints
def hops(adjacency, farthest: int) -> jax.Array:
    """The number of edges on the shortest path from node to node: int32 [*B, N, N].

    `farthest` + 1 where the path is longer or does not exist, also from and to padding.

    Args:
      adjacency: [*B, N, N], not 0 where an edge leads from the row's node to the column's.
      farthest: the longest distance that is kept, at least 1.

    Raises:
      ValueError: not square; `farthest` is not an integer from 1 to 2**30 - 1.
    """
    require(is_int(farthest, 1), "farthest", farthest, "pass an integer of at least 1")
    require(farthest < 2**30, "farthest", farthest, "paths are shorter: pass the number of nodes")
    edge = _square(adjacency).astype(bool)
    nodes = edge.shape[-1]
    itself = jnp.eye(nodes, dtype=bool)
    start = jnp.where(edge, 1, farthest + 1)
    start = jnp.where(jnp.broadcast_to(itself, edge.shape), 0, start).astype(jnp.int32)

    def through(node, lengths):  # Floyd and Warshall; none exceeds farthest + 1
        to_node = jax.lax.dynamic_slice_in_dim(lengths, node, 1, axis=-1)
        from_node = jax.lax.dynamic_slice_in_dim(lengths, node, 1, axis=-2)
        return jnp.minimum(lengths, to_node + from_node)

    return jax.lax.fori_loop(0, nodes, through, start) if nodes else start


def hop_bias(table: jax.Array, hops: jax.Array) -> jax.Array:
    """Graphormer's spatial encoding, b_h(hops): [*B, H, N, N], a bias of attention.

    Args:
      table: [H, farthest + 2], learned (zeros to begin with).
      hops: integers [*B, N, N], of `hops`.

    Raises:
      ValueError: a table that is not of two axes, or known hops outside it.
      TypeError: a table that is not of floats, hops that are not integers.
    """
    require_array("table", table, 2)
    require(table.ndim == 2, "table.shape", table.shape, "pass [H, farthest + 2]")
    hops, entries = as_positions(hops, name="hops"), table.shape[1]
    known = concrete(hops)
    if known is not None and known.size:
        least, most = int(known.min()), int(known.max())
        ok, fix = least >= 0 and most < entries, f"pass [H, {most + 1}]: hops are {least} to {most}"
        require(ok, "table.shape", table.shape, fix)
    return jnp.moveaxis(take(table, hops, axis=1, rows=entries), 0, -3)


@python_ints
def spectrum(adjacency, axes: int, nodes=None) -> tuple[jax.Array, jax.Array]:
    """The lowest eigenvalues of the Laplacian after the first, and their eigenvectors.

    L = D - W, undirected. On a path the eigenvectors are waves of half a period, one, …; the first
    of all, left out, is constant and has eigenvalue 0. They have norm 1 and either sign: multiply
    them by `jax.random.rademacher(key, (axes,), jnp.float32)` in training. Divided by the roots of
    their eigenvalues, their squared distances are resistances between nodes. A graph of several
    components has more than one eigenvalue 0, and coordinates that say which component a node is
    in. Where eigenvalues are equal, eigenvectors are any basis, and gradients by weights are NaN.
    (Attention gives its positions no gradient: to learn weights, call `rope_mixed.rotate`.)

    Args:
      adjacency: weights [*B, N, N] of edges, at least 0 and symmetric; its diagonal is not read.
      axes: A, how many: below the number of nodes.
      nodes: which are nodes and not padding, bool [*B, N]; None: all. Padding gets zeros, and so do
        axes that a graph has too few nodes for.

    Returns:
      Eigenvalues, float32 [*B, A], and coordinates, float32 [*B, N, A].

    Raises:
      ValueError: not square; `axes` is not an integer from 1 to N - 1; `nodes` of another shape;
        known weights that are negative, infinite, or not symmetric.
    """
    weights = _square(adjacency).astype(jnp.float32)
    count, shape = weights.shape[-1], weights.shape[:-1]
    ok = is_int(axes, 1) and axes < count
    require(ok, "axes", axes, f"pass an integer from 1 to {count - 1}, of {count} nodes")
    real = jnp.ones_like(weights[..., 0]) if nodes is None else jnp.asarray(nodes)
    real = real.astype(bool)
    require(real.shape == shape, "nodes.shape", real.shape, f"pass {list(shape)}")
    itself = align(jnp.eye(count, dtype=bool), weights)
    weights = jnp.where(real[..., None] & real[..., None, :] & ~itself, weights, 0.0)
    _check_weights(concrete(weights))
    degree = weights.sum(-1)
    largest = degree.max(-1, keepdims=True)
    # No eigenvalue of nodes is above twice that; those of padding differ, for gradients.
    apart = align(np.linspace(3, 4, count, endpoint=False, dtype=np.float32), degree)
    diagonal = jnp.where(real, degree, jnp.where(largest > 0, largest, 1.0) * apart)
    laplacian = diagonal[..., None] * itself.astype(jnp.float32) - weights
    values, vectors = jnp.linalg.eigh(laplacian)
    vectors = jnp.where(real[..., None], vectors, 0.0)
    return values[..., 1 : axes + 1], vectors[..., 1 : axes + 1]


def _check_weights(known: np.ndarray | None) -> None:
    if known is None or not known.size:
        return
    ok = np.isfinite(known).all() and (known >= 0).all()
    if not ok or (np.abs(known - known.swapaxes(-1, -2)) > 1e-4 * known.max()).any():
        fix = "pass weights of at least 0, the same both ways, such as a + a.swapaxes(-1, -2)"
        raise ValueError(f"adjacency: its edges are directed, negative or not finite; {fix}")
