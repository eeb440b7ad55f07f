"""Positions of graphs: SciPy's shortest paths and Laplacians, padding, and attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csgraph

import pe_jax
from pe_jax import graphs
from tests import util
from tests.util import E, H, T, assert_close


def graph(seed: int, nodes: int = T, share: float = 0.2, directed: bool = False) -> np.ndarray:
    upper = np.random.default_rng(seed).random((nodes, nodes)) < share
    edges = upper if directed else np.triu(upper, 1) | np.triu(upper, 1).T
    return edges & ~np.eye(nodes, dtype=bool)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 1.0])
def test_hops_are_the_lengths_of_shortest_paths(share, directed):
    edges = np.stack([graph(seed, share=share, directed=directed) for seed in range(3)])
    for farthest in (1, 3, 20):
        want = np.stack([csgraph.shortest_path(g.astype(float), unweighted=True) for g in edges])
        want = np.minimum(want, farthest + 1).astype(int)
        np.testing.assert_array_equal(graphs.hops(edges, farthest), want)


def test_the_bias_of_hops_is_graphormers_in_attention():
    edges, table = np.stack([graph(0), graph(1)]), util.noise(H, 5)
    q, k, v = util.inputs()
    found = graphs.hops(edges, 3)
    out = pe_jax.attention(q, k, v, bias=graphs.hop_bias(table, found), causal=False)
    k, v = (np.repeat(x, H // x.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("bthe,bshe->bhts", q, k) / E**0.5
    for b, h in np.ndindex(*scores.shape[:2]):
        scores[b, h] += table[h][np.asarray(found)[b]]
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_close(out, np.einsum("bhts,bshe->bthe", weights, v))
    grad = jax.grad(lambda t: (graphs.hop_bias(t, found) * 1.0).sum())(jnp.asarray(table))
    np.testing.assert_array_equal(grad, [np.bincount(np.ravel(found), minlength=5)] * H)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_spectrum_is_that_of_the_laplacian(weighted):
    edges = graph(2, share=0.4).astype(float)
    edges *= (1 + np.add.outer(np.arange(T), np.arange(T)) / T) if weighted else 1
    values, vectors = (np.asarray(x, np.float64) for x in graphs.spectrum(edges, 6))
    laplacian = csgraph.laplacian(edges)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(laplacian)[1:7], rtol=1e-5)
    assert_close(laplacian @ vectors, vectors * values, 2e-5)
    assert_close(vectors.T @ vectors, np.eye(6), 1e-5)
    every, all_of = graphs.spectrum(edges, T - 1)
    apart = np.asarray(all_of / np.sqrt(every), np.float64)
    inverse = np.linalg.pinv(laplacian)
    resistance = np.diag(inverse)[:, None] + np.diag(inverse)[None] - 2 * inverse
    assert_close(((apart[:, None] - apart[None]) ** 2).sum(-1), resistance, 1e-4)


def test_on_a_path_coordinates_are_waves():
    path = np.diag(np.ones(9), 1) + np.diag(np.ones(9), -1)
    values, vectors = graphs.spectrum(path, 2)
    places = np.pi * (np.arange(10) + 0.5) / 10
    for axis in (0, 1):
        wave = np.cos((axis + 1) * places) * (2 / 10) ** 0.5
        got = np.asarray(vectors[:, axis])
        assert_close(got * np.sign(got[0]), wave, 1e-5)
    np.testing.assert_allclose(values, 2 - 2 * np.cos(np.pi * np.array([1, 2]) / 10), rtol=1e-4)


def test_padding_changes_nothing_of_a_graph():
    small = np.triu(np.random.default_rng(3).random((9, 9)), 1)  # weights: no two waves are alike
    small += small.T
    padded = np.zeros((T, T))
    padded[:9, :9] = small
    padded[9:, :9] = padded[:9, 9:] = 1.0  # edges of padding are not read
    nodes = np.arange(T) < 9
    (values, vectors), (want, alone) = graphs.spectrum(padded, 5, nodes), graphs.spectrum(small, 5)
    np.testing.assert_allclose(values, want, rtol=1e-5)
    signs = np.sign((np.asarray(vectors[:9]) * np.asarray(alone)).sum(0))
    assert_close(vectors[:9] * signs, alone, 1e-4)
    assert not np.asarray(vectors[9:]).any()
    padded[9:] = padded[:, 9:] = 0.0
    found = np.asarray(graphs.hops(padded, 4))
    np.testing.assert_array_equal(found[:9, :9], graphs.hops(small, 4))
    assert (found[:9, 9:] == 5).all() and (found[9:, :9] == 5).all()


def test_gradients_by_weights_are_finite_whatever_the_padding():
    """Nodes of padding have no two eigenvalues alike, or all would be NaN."""
    small = np.triu(np.random.default_rng(5).random((6, 6)), 1)
    small += small.T
    padded = np.pad(small, (0, T - 6)).astype(np.float32)
    change = np.pad(np.triu(util.noise(6, 6), 1), (0, T - 6))
    change += change.T

    def total(weights, nodes=None):  # signs do not count
        values, places = graphs.spectrum(weights, 3, nodes)
        return values.sum() + (places**4).sum()

    def exact(step):
        weights = small + step * change[:6, :6]
        values, vectors = np.linalg.eigh(np.diag(weights.sum(0)) - weights)
        return values[1:4].sum() + (vectors[:, 1:4] ** 4).sum()

    want = (exact(1e-5) - exact(-1e-5)) / 2e-5
    for weights, nodes in ((padded, np.arange(T) < 6), (padded[:6, :6], None)):
        grad = np.asarray(jax.grad(total)(weights, nodes))
        np.testing.assert_allclose((grad * change[: len(grad), : len(grad)]).sum(), want, rtol=1e-3)


def test_axes_that_a_graph_has_no_nodes_for_are_0():
    values, places = graphs.spectrum(np.ones((6, 6)), 4, np.arange(6) < 3)
    np.testing.assert_allclose(values[:2], 3, rtol=1e-5)
    assert np.isfinite(values).all() and not np.asarray(places[:, 2:]).any()


def test_edges_from_a_node_to_itself_count_for_nothing_however_heavy():
    edges = graph(2, share=0.4) * np.float32(0.3)
    loops = edges + 1e7 * np.eye(T, dtype=np.float32)
    np.testing.assert_array_equal(graphs.spectrum(loops, 4)[1], graphs.spectrum(edges, 4)[1])


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_graphs_of_no_node_and_of_one(nodes):
    edges = np.ones((3, nodes, nodes), int)
    found = graphs.hops(edges, 9)  # farther than any path
    np.testing.assert_array_equal(found, edges - np.eye(nodes, dtype=int))
    assert graphs.hop_bias(np.zeros((H, 11), "f"), found).shape == (3, H, nodes, nodes)
    if nodes == 2:
        np.testing.assert_allclose(graphs.spectrum(edges, 1)[0], [[2.0]] * 3, rtol=1e-6)


def test_a_batch_divided_over_devices_keeps_its_division():
    kinds = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((2,), ("data",), kinds, devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        split = jax.sharding.NamedSharding(mesh, jax.P("data"))
        edges = jax.device_put(np.stack([graph(0), graph(1)]), split)
        found = graphs.hops(edges, 3)
        given = jax.device_put(np.ones((2, T), bool), split)
        each = found, graphs.hop_bias(jnp.zeros((H, 5)), found), *graphs.spectrum(edges, 2)
        assert {x.sharding.spec[0] for x in (*each, *graphs.spectrum(edges, 2, given))} == {"data"}


@pytest.mark.parametrize("axes", [3, 5])
def test_wire_rotates_by_the_coordinates_whatever_the_order_of_nodes(axes):
    encoding = pe_jax.make("rope_mixed", axes=axes)
    params, (q, k, v) = util.random_params(encoding), (x[0] for x in util.inputs())
    coordinates = np.asarray(graphs.spectrum(graph(4, share=0.5), axes)[1])

    def attend(order):
        given = {"encoding": encoding, "params": params, "causal": False}
        return pe_jax.attention(
            q[order], k[order], v[order], q_positions=coordinates[order], **given
        )

    want = util.naive_attention(encoding, params, q, k, v, positions=coordinates, causal=False)
    assert_close(attend(np.arange(T)), want)
    order = np.random.default_rng(0).permutation(T)
    assert_close(attend(order), want[order])
    drawn = encoding.init_layer(jax.random.key(0), pe_jax.Dims(64, 4, 4, 16))["frequencies"]
    lengths = np.linalg.norm(drawn, axis=0)
    assert drawn.shape == (axes, 4, 8)
    np.testing.assert_allclose(lengths, [10.0 ** (-np.arange(8) / 8)] * 4, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: graphs.hops(np.zeros((3, 4)), 2),
            r"adjacency\.shape=\(3, 4\): pass \[\*B, N, N\]",
        ),
        (lambda: graphs.hops(np.zeros((3, 3)), 0), "farthest=0: pass an integer of at least 1"),
        (lambda: graphs.hops(np.zeros((3, 3)), 2**31 - 1), "pass the number of nodes"),
        (lambda: graphs.spectrum(np.zeros((3, 3)), 3), "axes=3: pass an integer from 1 to 2"),
        (lambda: graphs.spectrum(np.zeros((3, 3)), 1, 2), r"nodes\.shape=\(\): pass \[3\]"),
        (lambda: graphs.spectrum(np.triu(np.ones((3, 3))), 1), "edges are directed, negative or"),
        (lambda: graphs.spectrum(-np.ones((3, 3)), 1), "edges are directed, negative or"),
        (lambda: graphs.spectrum(np.full((3, 3), np.nan), 1), "edges are directed, negative or"),
        (
            lambda: graphs.hop_bias(np.zeros((2, 3), "f"), [[0, 3]]),
            r"pass \[H, 4\]: hops are 0 to 3",
        ),
        (lambda: graphs.hop_bias(np.zeros((2, 3), "f"), [[0, -1]]), "hops are -1 to 0"),
        (
            lambda: graphs.hop_bias(np.zeros((2, 3, 4), "f"), np.zeros((3, 3), int)),
            r"table\.shape=",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
