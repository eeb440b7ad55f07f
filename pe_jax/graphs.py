"""Positions of the nodes of graphs: hops for biases, coordinates for rotations.

Graphormer (Ying et al., arXiv 2106.05234) adds a learned number to the score of two nodes for the
length of the shortest path between them: `hop_bias`, as `pe_jax.attention(…, bias=…)`. WIRE (Reid
et al., arXiv 2509.22259) rotates by the nodes' coordinates in the spectrum of the graph's
Laplacian: `spectrum`, as positions of `rope_mixed(axes=…)`. docs/borrow.md has both.

B graphs (any number of axes), N nodes, A axes of a position, H heads.
"""

import jax
import jax.numpy as jnp

from pe_jax.numerics.arrays import require_array, take
from pe_jax.validation import is_int, python_ints, require


def _connected(adjacency) -> jax.Array:
    adjacency = jnp.asarray(adjacency)
    shape = adjacency.shape
    square = adjacency.ndim >= 2 and shape[-1] == shape[-2]
    require(square, "adjacency.shape", shape, "pass [*B, N, N]: which nodes have an edge")
    return adjacency != 0


@python_ints
def hops(adjacency, farthest: int) -> jax.Array:
    """The number of edges on the shortest path from node to node: int32 [*B, N, N].

    `farthest` + 1 where the path is longer or does not exist, also from and to padding.

    Args:
      adjacency: [*B, N, N], not 0 where an edge leads from the row's node to the column's.
      farthest: the longest distance that is kept, at least 1.

    Raises:
      ValueError: not square; `farthest` is not an integer of at least 1.
    """
    require(is_int(farthest, 1), "farthest", farthest, "pass an integer of at least 1")
    edge = _connected(adjacency)
    nodes = edge.shape[-1]
    itself = jnp.eye(nodes, dtype=bool)
    start = jnp.where(edge, 1, farthest + 1)
    start = jnp.where(jnp.broadcast_to(itself, edge.shape), 0, start).astype(jnp.int32)

    def through(node, lengths):  # Floyd and Warshall; none exceeds farthest + 1
        to_node = jax.lax.dynamic_slice_in_dim(lengths, node, 1, axis=-1)
        from_node = jax.lax.dynamic_slice_in_dim(lengths, node, 1, axis=-2)
        return jnp.minimum(lengths, to_node + from_node)

    return jax.lax.fori_loop(0, nodes, through, start)


def hop_bias(table: jax.Array, hops: jax.Array) -> jax.Array:
    """Graphormer's spatial encoding, b_h(hops): [*B, H, N, N], a bias of attention.

    Args:
      table: [H, farthest + 2], learned (zeros to begin with).
      hops: integers [*B, N, N], of `hops`.

    Raises:
      ValueError: a table that is not of two axes.
      TypeError: not an array of floats.
    """
    require_array("table", table, 2)
    require(table.ndim == 2, "table.shape", table.shape, "pass [H, farthest + 2]")
    return jnp.moveaxis(take(table, jnp.asarray(hops), axis=1), 0, -3)


@python_ints
def spectrum(adjacency, axes: int, nodes=None) -> tuple[jax.Array, jax.Array]:
    """The lowest eigenvalues of the Laplacian after the first, and their eigenvectors.

    L = D - W, undirected. On a path the eigenvectors are waves of half a period, one, …; the first
    of all, left out, is constant and has eigenvalue 0. They have norm 1 and either sign: multiply
    them by `jax.random.rademacher(key, (axes,))` in training. Divided by the roots of their
    eigenvalues, their distances are resistances between nodes. A graph of several components has
    more than one eigenvalue 0, and coordinates that say which component a node is in.

    Args:
      adjacency: weights [*B, N, N] of edges, at least 0 and symmetric.
      axes: A, how many: below the number of nodes.
      nodes: which are nodes and not padding, bool [*B, N]; None: all. Padding gets zeros.

    Returns:
      Eigenvalues, float32 [*B, A], and coordinates, float32 [*B, N, A].

    Raises:
      ValueError: not square; `axes` is not an integer from 1 to N - 1.
    """
    _connected(adjacency)
    weights = jnp.asarray(adjacency).astype(jnp.float32)
    count = weights.shape[-1]
    ok = is_int(axes, 1) and axes < count
    require(ok, "axes", axes, f"pass an integer from 1 to {count - 1}, of {count} nodes")
    real = jnp.ones(weights.shape[:-1], bool) if nodes is None else jnp.asarray(nodes)
    weights = jnp.where(real[..., None] & real[..., None, :], weights, 0.0)
    degree = weights.sum(-1)
    beyond = 2 * degree.max(-1, keepdims=True) + 1  # no eigenvalue of nodes is as large
    diagonal = jnp.where(real, degree, beyond)
    laplacian = diagonal[..., None] * jnp.eye(count, dtype=jnp.float32) - weights
    values, vectors = jnp.linalg.eigh(laplacian)
    vectors = jnp.where(real[..., None], vectors, 0.0)
    return values[..., 1 : axes + 1], vectors[..., 1 : axes + 1]
