"""Which keys a query sees: masks of prefixes, chunks and trees, and lengths of rows."""

import functools

import jax
import jax.export
import numpy as np
import pytest

import pe_jax
from pe_jax import masks
from pe_jax.encodings.rope_scaling import DynamicNTK
from tests.test_attention_options import DIMS, PARENTS, QKV, TILED, B, E, H, T
from tests.util import jit, noise

DYNAMIC = DynamicNTK(factor=2.0, original_length=8)


@pytest.mark.parametrize(
    "mask, seen",
    [
        (masks.prefix(3), lambda i, j: j < 3 or j <= i),
        (masks.chunks(7), lambda i, j: j <= i and i // 7 == j // 7),
        (masks.tree(PARENTS), lambda i, j: j in ancestors(i)),
    ],
    ids=["prefix", "chunks", "tree"],
)
def test_masks_show_what_they_say(mask, seen):
    array = np.array([[seen(i, j) for j in range(T)] for i in range(T)])
    outputs = jit(lambda: [pe_jax.attention(*QKV, mask=m, causal=False) for m in (mask, array)])()
    np.testing.assert_allclose(*outputs, atol=1e-6)


IDS = np.repeat(np.array([[0, 1, -1, 2], [-1, 0, 3, 1]]), (7, 13, 9, 11), axis=1)


RULES = {
    "chunks": (masks.chunks(4), lambda i, j: (j <= i) & (i // 4 == j // 4)),
    "prefix": (masks.prefix(np.array([3, 5])), lambda i, j: (j <= i) | (j < 3)),
}


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("queries", [T, 15])
@pytest.mark.parametrize("engine", ["dense", TILED])
def test_chunks_and_prefixes_are_those_of_each_document(kind, queries, engine):
    """Packed rows, padding on either side and between, all queries or the last ones."""
    mask, rule = RULES[kind]
    q, k, v = (np.asarray(x) for x in QKV)
    segments = {"q_segments": IDS[:, -queries:], "k_segments": IDS}
    if queries == T:
        segments = {"q_segments": IDS}
    else:
        places = np.arange(T)
        segments |= {"q_positions": places[-queries:], "k_positions": places}
        segments |= {"q_index": places[-queries:]}
    options = {"mask": mask, "causal": False, "implementation": engine, **segments}
    got = np.asarray(jit(lambda: pe_jax.attention(q[:, -queries:], k, v, **options))())
    want = np.zeros((B, T, H, E))
    for row in range(B):
        for document in set(IDS[row]) - {-1}:
            at = np.flatnonzero(IDS[row] == document)
            i = np.arange(len(at))
            visible = rule(i[:, None], i)
            if kind == "prefix" and row == 1:
                visible = (i <= i[:, None]) | (i < 5)
            alone = [np.repeat(x[row, at], H // x.shape[2], 1).astype(float) for x in (q, k, v)]
            s = np.einsum("the,she->hts", *alone[:2]) / E**0.5
            w = np.where(visible, np.exp(s), 0)
            w /= w.sum(-1, keepdims=True)
            want[row, at] = np.einsum("hts,she->the", w, alone[2])
    np.testing.assert_allclose(got, want[:, -queries:], atol=1e-5)


@pytest.mark.parametrize("engine", ["dense", TILED])
@pytest.mark.parametrize(
    "lengths",
    [
        {"q_lengths": np.array([33, T])},
        {"k_lengths": np.array([0, 21], np.uint8)},
        {"q_lengths": [7, 21], "k_lengths": [9, 20]},
    ],
    ids=["q", "k", "both"],
)
def test_lengths_are_those_of_jax_nn(lengths, engine):
    """There, a row of no keys has the mean of the values of all."""
    theirs = {
        {"q_lengths": "query_seq_lengths", "k_lengths": "key_value_seq_lengths"}[name]: np.int32(x)
        for name, x in lengths.items()
    }
    for causal in (False, True):
        want = jax.nn.dot_product_attention(*QKV, is_causal=causal, **theirs)
        some = np.array(theirs.get("key_value_seq_lengths", [T, T])) > 0
        want = np.where(some[:, None, None, None], want, 0)
        run = functools.partial(pe_jax.attention, causal=causal, implementation=engine)
        np.testing.assert_allclose(run(*QKV, **lengths), want, atol=1e-5)
        known = {name: np.asarray(x) for name, x in lengths.items()}
        np.testing.assert_allclose(jit(run)(*QKV, **known), want, atol=1e-5)


def test_the_same_lengths_of_both_sides_are_segments_of_one_row():
    """So that tiles know where the diagonal is; and positions begin at 0."""
    lengths = np.array([9, T])
    segments = np.where(np.arange(T) < lengths[:, None], 0, -1)
    options = {"encoding": "rope", "implementation": TILED}
    got = pe_jax.attention(*QKV, q_lengths=lengths, k_lengths=lengths, **options)
    want = pe_jax.attention(*QKV, q_segments=segments, **options)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"q_lengths": [4, 41]}, r"q_lengths=.*: pass integers from 0 to 40"),
        ({"k_lengths": [-1, 4]}, r"k_lengths=.*: pass integers from 0 to 40"),
        ({"k_lengths": 3}, r"k_lengths has shape \[\]; pass \[2\]"),
        ({"k_lengths": [3, 4], "q_segments": IDS}, "leave one of lengths and segments out"),
    ],
)
def test_lengths_that_cannot_be_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        pe_jax.attention(*QKV, **wrong)


def ancestors(token: int) -> list[int]:
    """Itself, its parent, and so on to the root."""
    return [] if token < 0 else [token, *ancestors(int(PARENTS[token]))]


INDEX = noise(B, T, 3, 8, seed=4), noise(B, T, 8, seed=5), noise(B, T, 3, seed=6)
PARTIAL = pe_jax.make("rope", fraction=0.5, layout="interleaved")


def selected(count: int, rope, ids: np.ndarray) -> np.ndarray:
    """The pairs that an indexer selects, one by one in float64: bool [B, T, T]."""
    q, k = (
        rope.rotate(None, INDEX[0], np.arange(T)),
        rope.rotate(None, INDEX[1][:, :, None], np.arange(T)),
    )
    q, k, weights = (np.asarray(x, np.float64) for x in (q, k[:, :, 0], INDEX[2]))
    scores = np.einsum("bth,bhts->bts", weights, np.maximum(np.einsum("bthe,bse->bhts", q, k), 0))
    chosen = np.zeros((B, T, T), bool)
    for b, t in np.ndindex(B, T):
        before = [s for s in range(t + 1) if ids[b, s] == ids[b, t] >= 0]
        chosen[b, t, sorted(before, key=lambda s: (-scores[b, t, s], s))[:count]] = True
    return chosen


@pytest.mark.parametrize("engine", ["dense", TILED])
def test_the_best_keys_are_those_of_an_indexer(engine):
    """Also those of the last queries alone, and in a cache, with padding before or between."""
    ids = np.where(np.arange(T) < np.array([[T], [17]]), 0, 1)
    options = {"encoding": "alibi", "implementation": engine}
    dense = {**options, "implementation": "dense"}
    for segments in (None, ids):
        mask = masks.best_keys(*INDEX, 6, rope=PARTIAL, segments=segments)
        array = selected(6, PARTIAL, 0 * ids if segments is None else ids)
        assert array.sum(-1).max() == 6
        want = pe_jax.attention(*QKV, mask=array[:, None], q_segments=segments, **dense)
        got = pe_jax.attention(*QKV, mask=mask, q_segments=segments, **options)
        np.testing.assert_allclose(got, want, atol=1e-5)

    at, (q, k, v) = T - 9, QKV
    extend = functools.partial(pe_jax.cache.extend, encoding="alibi", implementation=engine)
    for segments in (None, np.where(np.arange(T) // 5 == np.array([[0], [7]]), -1, ids)):
        every = masks.best_keys(*INDEX, 6, rope=PARTIAL, segments=segments)
        whole = pe_jax.attention(*QKV, mask=every, q_segments=segments, **options)
        last = INDEX[0][:, at:], INDEX[1], INDEX[2][:, at:]
        last = masks.best_keys(*last, 6, rope=PARTIAL, segments=segments)
        ids = (None, None) if segments is None else np.split(segments, [at], 1)
        cache = pe_jax.cache.empty(pe_jax.make("alibi"), B, T, DIMS)
        _, cache = extend(cache, q[:, :at], k[:, :at], v[:, :at], segments=ids[0])
        out, _ = extend(cache, q[:, at:], k[:, at:], v[:, at:], segments=ids[1], mask=last)
        real = ... if segments is None else ids[1] >= 0
        np.testing.assert_allclose(out[real], whole[:, at:][real], atol=1e-5)


def test_an_indexer_that_selects_all_changes_nothing_and_equal_scores_are_the_first():
    every = masks.best_keys(*INDEX, 100, rope=PARTIAL)
    run = jit(lambda mask=None: pe_jax.attention(*QKV, mask=mask))
    np.testing.assert_allclose(run(every), run(), atol=1e-6)
    q, k, weights = INDEX
    alike = masks.best_keys(q, 0 * k, weights, 4)
    first = np.tril(np.ones((T, T), bool)) & (np.arange(T) < 4)
    np.testing.assert_allclose(run(alike), run(first), atol=1e-6)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"count": 0}, "count=0: pass an integer of at least 1"),
        ({"weights": INDEX[2][:, :3]}, r"weights=.*: q has shape .* pass \[B, T, H\]"),
        ({"k": INDEX[1][:, :3]}, r"k=.*: pass \[2, S, 8\] with S of at least 40"),
        ({"rope": pe_jax.make("rope", scaling=DYNAMIC)}, "at_length"),
        ({"rope": pe_jax.make("alibi")}, r"rope=ALiBi\(.*\): pass a RoPE, or None"),
        ({"rope": PARTIAL, "positions": [5]}, r"positions=\(1,\): pass those of all keys, \[40\]"),
        ({"segments": np.zeros((B, 1), int)}, r"segments=\(2, 1\): pass those of all keys"),
    ],
)
def test_an_indexer_whose_arrays_do_not_fit_is_refused(wrong, words):
    given = dict(zip(("q", "k", "weights"), INDEX, strict=True), count=4)
    with pytest.raises(ValueError, match=words):
        masks.best_keys(**given | wrong)


def test_an_indexer_is_exported_for_any_batch():
    def run(index, q, k, v):
        return pe_jax.attention(q, k, v, mask=masks.best_keys(*index, 6, rope=PARTIAL))

    (batch,) = jax.export.symbolic_shape("b")
    given = INDEX, *QKV
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), given)
    exported = jax.export.export(jax.jit(run))(*shapes)
    np.testing.assert_allclose(exported.call(*given), run(*given), atol=1e-6)


def test_an_indexer_of_fewer_keys_is_of_another_call():
    few = masks.best_keys(*(x[:, 30:] for x in INDEX), 4)
    with pytest.raises(ValueError, match="mask.length=10: k has 40 tokens"):
        pe_jax.attention(*QKV, mask=few)


def test_trees_and_chunks_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="a parent comes before its child"):
        masks.tree(np.array([1, -1]))
    with pytest.raises(ValueError, match="size=0: pass an integer of at least 1"):
        masks.chunks(0)
