"""Training and evaluation: the same numbers on any mesh, after any stop, by any protocol."""

import dataclasses
import json
import re
from concurrent import futures
from types import SimpleNamespace

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import logsumexp

from pe_jax.models import layers
from pe_jax.training import sharding, tasks, utilization
from pe_jax.training.checkpoint import Checkpoints
from pe_jax.training.config import PROTOCOLS, EvalConfig, MeshConfig, OptimizerConfig
from pe_jax.training.evaluate import Evaluator, pieces
from pe_jax.training.optimizer import is_encoding, schedule
from pe_jax.training.step import Trainer
from tests import tiny
from tests.tiny import SPECS, L, R
from tests.trainers import OPTIMIZER, STEPS, loss_at, spoil, start, steps, trainer
from tests.util import assert_close

pytestmark = pytest.mark.xdist_group("training")  # they share programs
TWO = "t5+rope,fox"  # a table for all layers, and parameters of one


@tiny.few("learned two recurrent", {**SPECS, "two": TWO, "recurrent": "gated_delta,fox"})
def test_eight_devices_train_as_one_does(spec):
    state, got = steps(trainer(spec, 8), 4)
    _, want = steps(trainer(spec), 4)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for moment in ("mu", "nu"):
        moments = optax.tree_utils.tree_get(state.opt_state, moment)
        places = jax.tree.map(lambda x, y: x.sharding == y.sharding, moments, state.params)
        assert all(jax.tree.leaves(places))
    up = state.params["blocks"][0]["mlp"]["up"]["kernel"]
    assert up.addressable_shards[0].data.size == up.size / 4  # over fsdp and model


@pytest.mark.parametrize("spec", ["t5+rope", "tupe"])
def test_weights_go_round_and_activations_stay(spec, capfd):
    """Left to itself, XLA gathered the rows of all devices, a part of each one's width."""
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, model=2), jax.devices())
    one = Trainer(tiny.config(spec, remat=True), OPTIMIZER, STEPS, mesh)
    text = one.compile(R, L).as_text()
    assert re.search(rf"f32\[{R // 4},{L},16\]", text) and "all-gather" in text
    assert not re.search(rf"f32\[({R},{L}|{R * L}),\d+\]", text)
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


@pytest.mark.parametrize("count", [1, 8])
def test_a_step_is_traced_for_the_devices_of_its_mesh(count, monkeypatch):
    """From shapes without shardings, and of a model that lays out no activation."""
    monkeypatch.setattr(sharding, "activation_sharding", lambda mesh: None)
    found, devices = set(), layers.devices
    monkeypatch.setattr(layers, "devices", lambda x: found.add(devices(x)) or devices(x))
    config = MeshConfig(data=1) if count == 1 else MeshConfig(data=2, fsdp=2, model=2)
    mesh = sharding.make_mesh(config, jax.devices()[:count])
    one = Trainer(tiny.config("rope"), OPTIMIZER, STEPS, mesh)
    bare = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # noqa: E731
    one.step.trace(*jax.tree.map(bare, one.arguments(R, L)))
    tokens = jax.ShapeDtypeStruct((R, L + 1), np.int32)
    losses = Evaluator(one, EvalConfig(lengths=(L,))).losses
    losses.trace(one.shapes, tokens, jax.ShapeDtypeStruct((), np.int32))
    assert found == {count}


def test_eight_devices_start_as_one_does():
    shardings = trainer(SPECS["rope"], 8).shardings
    states = [jax.tree.map(np.asarray, trainer(SPECS["rope"], n).init(3)) for n in (1, 8)]
    assert_close(*states, 1e-6)
    assert {len(s.device_set) for s in jax.tree.leaves(shardings)} == {8}


def test_microbatches_add_up_to_the_gradient_of_the_batch():
    whole = trainer(TWO)
    two = Trainer(whole.config, OPTIMIZER, STEPS, trainer(TWO, 8).mesh, microbatches=2)
    batch = tiny.batch()
    batch["weights"][0], batch["segments"][0] = 0, 0  # nothing but padding
    batch["weights"][1, :7] = 0
    targets = batch["weights"][:, 1:].sum(1)
    assert len({targets[k::2].sum() for k in range(2)}) > 1  # no mean of their means
    (state, got), (like, want) = steps(two, 2, batch), steps(whole, 2, batch)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    moments = [optax.tree_utils.tree_get(s.opt_state, "mu") for s in (state, like)]
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), *moments)


def test_microbatches_take_less_memory():
    model, mesh = tiny.config("nope", layers=1), trainer("rope").mesh
    whole, parts = (
        Trainer(model, OPTIMIZER, STEPS, mesh, microbatches=n).compile(64, 32).memory_analysis()
        for n in (1, 8)
    )
    assert parts.temp_size_in_bytes < 0.3 * whole.temp_size_in_bytes


def test_all_seeds_and_rates_share_one_program():
    one = trainer(SPECS["rope"])
    first = one.compile(R, L)
    losses, rates = [], []
    for seed in (0, 1, 2):
        faster = dataclasses.replace(OPTIMIZER, learning_rate=0.01 * (1 + seed))
        state = one.init(seed, faster)
        for _ in range(2):  # the first one warms up: its rate is 0
            state, metrics = one.step(state, one.put(tiny.batch()), np.int32(seed))
        losses.append(float(metrics.loss))
        rates.append(metrics.learning_rate / faster.learning_rate)
        assert int(state.step) == 2 and one.compile(R, L) is first
    assert len(set(losses)) == 3 and np.ptp(rates) < 1e-6 < rates[0]
    assert one.start._cache_size() == 1


def test_dropout_is_drawn_anew_for_every_step_seed_and_microbatch():
    mesh, model = trainer("rope").mesh, tiny.config("nope", layers=1, dropout=0.5)
    one, keys = Trainer(model, OPTIMIZER, STEPS, mesh, microbatches=2), []

    def noting(model, batch, key):
        jax.debug.callback(lambda key: keys.append(tuple(key.tolist())), jax.random.key_data(key))
        return Trainer.loss(one, model, batch, key)

    one.loss = noting
    a, b, c, again = (loss_at(one, *at) for at in ((0, 0), (1, 0), (0, 1), (0, 0)))
    jax.effects_barrier()
    assert len({a, b, c}) == 3 and again == a and len({*keys}) == 6  # of the two halves of three


def test_encodings_learn_at_a_rate_of_their_own_shared_and_per_layer_alike():
    """Times a power of two, so that it is exact; the rest of the model does not notice."""
    one, moved = trainer("transformer_xl+t5"), {}
    before = jax.tree.map(np.asarray, start(one).params)
    for multiple in (1, 4):
        state = start(one, dataclasses.replace(OPTIMIZER, encoding_rate=multiple))
        for _ in range(2):  # the first one warms up: its rate is 0
            state, _ = one.step(state, one.put(tiny.batch()), np.int32(0))
        leaves = jax.tree.leaves_with_path(jax.tree.map(np.subtract, state.params, before))
        moved[multiple] = {sharding.path_name(path): leaf for path, leaf in leaves}
    own = [name for name in moved[1] if is_encoding(name)]
    assert {name.rpartition("/")[2] for name in own} == {"u", "v", "w_r", "table"}
    for name, step in moved[1].items():
        assert np.abs(step).max() > 1e-3, name
        times = 4 if name in own else 1
        np.testing.assert_allclose(moved[4][name], times * step, rtol=1e-3, atol=1e-6, err_msg=name)


def test_a_step_says_its_learning_rate():
    one, rates = trainer(SPECS["rope"]), []
    state, batch = one.init(0), one.put(tiny.batch())
    for _ in range(3):
        state, metrics = one.step(state, batch, np.int32(0))
        rates.append(float(metrics.learning_rate))
    assert rates[0] == 0 and rates[1] == np.float32(OPTIMIZER.learning_rate) > rates[2] > 0


@pytest.mark.parametrize("steps, warmup", [(10, 0), (10, 1), (10, 8), (600, 50), (2, 0)])
def test_the_last_update_has_the_final_rate_and_the_others_lie_on_the_cosine(steps, warmup):
    config = OptimizerConfig(warmup=warmup, final=0.1)
    rates = schedule(config, steps)(np.arange(steps))
    decay = (np.arange(warmup, steps) - warmup) / (steps - warmup)
    want = np.concatenate([np.arange(warmup) / max(warmup, 1), 0.55 + 0.45 * np.cos(np.pi * decay)])
    np.testing.assert_allclose(rates, [*want[:-1], 0.1], rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_warm_up_to_the_last_update_keeps_its_rates(steps):
    config = OptimizerConfig(warmup=steps, final=0.1)
    rates = schedule(config, steps)(np.arange(steps))
    np.testing.assert_allclose(rates, np.arange(steps) / steps, rtol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_of_linear_layers_are_decayed_and_nothing_else(tied):
    """With no gradient an update is the decay alone."""
    model = tiny.config("transformer_xl", tied=tied)
    one = Trainer(model, dataclasses.replace(OPTIMIZER, warmup=0), STEPS, trainer("rope").mesh)

    def update(params):
        tx, zeros = one.optimizer(np.float32([0.5, 1])), jax.tree.map(jnp.zeros_like, params)
        return tx.update(zeros, tx.init(params), params)[0]

    updates = jax.tree.leaves_with_path(jax.jit(update)(tiny.like(one.shapes)))
    names = {sharding.path_name(path): x for path, x in updates}
    decayed = {name for name, x in names.items() if np.any(x)}
    assert decayed == {name for name, x in names.items() if x.ndim >= 2 and name.endswith("kernel")}
    assert ("head/kernel" in decayed) != tied
    assert {"embed/embedding", "blocks/0/attention/params/w_r"} <= {*names} - decayed


def test_one_batch_is_learned_by_heart():
    one = trainer(SPECS["rope"])
    state, batch, found = one.init(0), one.put(tiny.batch()), []
    for _ in range(STEPS):
        state, metrics = one.step(state, batch, np.int32(0))
        found.append(float(metrics.loss))
    assert 2.5 < found[0] < 3.5 and found[-1] < 0.3 * found[0]  # log(20) is 3.0


def test_loss_is_the_weighted_mean_of_numpy_token_losses():
    batch = tiny.batch()
    one = trainer(SPECS["rope"])
    params = tiny.like(one.shapes)
    logits = tiny.forward(one.config)(params, batch["tokens"][:, :-1], batch["segments"][:, :-1])
    targets, weights = batch["tokens"][:, 1:, None], batch["weights"][:, 1:]
    losses = (
        logsumexp(logits, axis=-1) - np.take_along_axis(np.asarray(logits), targets, -1)[..., 0]
    )
    (found,) = steps(one, 1, batch)[1]
    np.testing.assert_allclose(found[0], (losses * weights).sum() / weights.sum(), rtol=1e-5)


# 25
def test_padding_does_not_matter():
    batch = tiny.batch()
    batch["segments"][2], batch["weights"][2] = 0, 0  # a row that is nothing else
    other = {**batch, "tokens": np.where(batch["segments"] == 0, 7, batch["tokens"])}
    assert (other["tokens"] != batch["tokens"]).sum() > R
    one = trainer(SPECS["rope"])
    want, got = steps(one, 1, batch)[1], steps(one, 1, other)[1]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert np.isfinite(got).all()


def test_flops_per_token_are_those_of_palm():
    """Every matrix but the table that is only read, and scores with all tokens of a row."""
    shapes = trainer("t5+rope").shapes
    width, hidden, kv = 16, 3 * 16 * 40, 2 * 16 * 8  # 40: 8/3 of 16, to eights
    weights = 2 * (hidden + 2 * 16 * 16 + kv) + tiny.V * width
    want = 6 * weights + 12 * 2 * 16 * L
    assert utilization.flops_per_token(tiny.config("t5+rope"), shapes, L) == want
    windowed = tiny.config("t5+rope", window=4)
    assert utilization.flops_per_token(windowed, shapes, L) == want - 12 * 2 * 16 * (L - 4)
    kinds = "NVIDIA H200", "TPU v5 lite", "NVIDIA L40S"
    h200, tpu, l40s = (SimpleNamespace(device_kind=kind) for kind in kinds)
    assert utilization.peak([h200] * 4) == 4 * 989e12 and utilization.peak([tpu]) == 197e12
    assert utilization.peak([l40s]) == 362e12
    assert utilization.peak(jax.devices()) is None  # a CPU's is not published


# Evaluation.

ARANGE = np.arange(2 * 100, 2 * 100 + 3 * 49).reshape(3, 49)  # three windows, M = 24


@pytest.mark.parametrize("length", [4, 8, 12, 24])
def test_both_protocols_score_every_target_once_with_the_right_context(length):
    stride, targets = 4, ARANGE[:, 25:]
    flat = pieces(ARANGE, length, "non-overlapping", stride)
    slid = pieces(ARANGE, length, "sliding", stride)
    assert flat.shape[1] == slid.shape[1] == length + 1
    np.testing.assert_array_equal(flat[:, 1:].reshape(3, -1), targets)
    np.testing.assert_array_equal(slid[:, -stride:].reshape(3, -1), targets)
    for rows in (flat, slid):
        assert (np.diff(rows, axis=1) == 1).all()  # the context is what stands before, no more


def evaluator(monkeypatch, losses, spec="rope", **fields):
    """An evaluator whose model has these losses: rows [R, n + 1] → [R, n]."""

    def run(self, params, rows, size=None):
        return losses(rows), np.ones((len(rows), rows.shape[1] - 1), bool)

    monkeypatch.setattr(Evaluator, "run", run)
    return Evaluator(trainer(spec), EvalConfig(**fields))


def test_a_window_has_its_own_mean_and_a_short_table_no_number(monkeypatch):
    spec = "learned(length=12)"
    fields = {"lengths": (4, 12, 24), "stride": 2, "windows": 3}
    one = evaluator(monkeypatch, lambda rows: rows[:, 1:] * 1.0, spec, **fields)
    found = one.by_length(None, ARANGE)
    means = ARANGE[:, 25:].mean(axis=1).tolist()
    for protocol in PROTOCOLS:
        assert found["losses"][protocol] == {"4": means, "12": means, "24": None}
    assert found["by_position"] == {"length": 24, "loss": None}
    assert json.loads(json.dumps(found)) == found
    one = evaluator(monkeypatch, lambda rows: rows[:, 1:] * 1.0, **fields)
    found = one.by_length(None, ARANGE)
    assert found["losses"]["sliding"]["24"] == means
    assert found["by_position"]["loss"] == ARANGE[:, 25:].mean(axis=0).tolist()


def test_an_evaluation_computes_no_more_than_it_reports(monkeypatch):
    """Each target once per protocol and its context, without padding, in one shape per length."""
    config = EvalConfig(lengths=(8, 16, 64), stride=4, windows=3, batch_tokens=100)
    one, shapes = Evaluator(trainer("rope"), config), []

    def losses(params, tokens, first):
        shapes.append((tokens.shape[0], tokens.shape[1] - 1))
        return np.zeros(shapes[-1]), np.zeros(shapes[-1], bool)

    monkeypatch.setattr(one, "losses", losses)
    one.by_length(None, np.zeros((3, 129), np.int32))
    assert set(shapes) == {(12, 8), (6, 16), (1, 64)}
    targets = 3 * 64
    assert sum(rows * n for rows, n in shapes) == sum(
        targets + targets // 4 * n for n in (8, 16, 64)
    )
    shapes.clear()
    other = one.with_config(dataclasses.replace(config, lengths=(8,), windows=24, stride=8))
    other.by_length(None, np.zeros((24, 17), np.int32))
    assert shapes == [(12, 8), (12, 8)]  # the two protocols are one, and so are the programs


def test_a_task_is_scored_on_its_answers_alone(monkeypatch):
    task = tasks.TASKS["copy"]
    one = evaluator(
        monkeypatch,
        lambda rows: np.tile(np.arange(1.0, rows.shape[1]), (len(rows), 1)),
        "learned(length=12)",
        lengths=(6, 12, 24),
        stride=2,
        windows=5,
    )
    found = one.by_task_length(None, task)
    for length, string in ((6, 2), (12, 5)):
        want = np.arange(string + 2, 2 * string + 3).mean()  # the answer and its EOS
        assert found["losses"]["non-overlapping"][str(length)] == [want] * 5
    assert found["losses"]["non-overlapping"]["24"] is None and found["exact"]["24"] is None
    assert set(found["losses"]["sliding"].values()) == {None}
    assert found["exact"]["6"] == found["exact"]["12"] == 1


def test_an_answer_is_exact_only_if_every_token_is(monkeypatch):
    one = evaluator(monkeypatch, lambda rows: rows[:, 1:] * 1.0, lengths=(6,), stride=2, windows=4)

    def run(params, rows):
        right = np.ones((4, rows.shape[1] - 1), bool)
        right[0, -1] = False  # EOS, a part of the answer
        right[1, 0] = False  # a token of the question
        return np.zeros(right.shape), right

    monkeypatch.setattr(one, "run", run)
    assert one.by_task_length(None, tasks.TASKS["copy"])["exact"] == {"6": 0.75}


def test_a_check_of_a_task_asks_other_questions(monkeypatch):
    asked = []
    one = evaluator(
        monkeypatch, lambda rows: rows[:, 1:] * 1.0, lengths=(24,), stride=2, windows=50
    )
    monkeypatch.setattr(one, "run", lambda _, rows: (asked.append(rows), (rows[:, 1:],) * 2)[1])
    for seed in (0, 0, 1):
        one.by_task_length(None, tasks.TASKS["copy"], seed)
    first, same, other = ({row.tobytes() for row in rows} for rows in asked)
    assert first == same and not first & other


def test_a_length_that_no_question_of_a_task_fills_has_no_number(monkeypatch):
    fields = {"lengths": (57, 128), "stride": 2, "windows": 2}
    one = evaluator(monkeypatch, lambda rows: rows[:, 1:] * 1.0, **fields)
    found = one.by_task_length(None, tasks.TASKS["variables"])["losses"]["non-overlapping"]
    assert [found[str(n)] is None for n in fields["lengths"]] == [False, True]


@pytest.mark.parametrize("devices", [1, 8])
def test_token_losses_equal_numpy_whatever_the_batches(devices):
    one = trainer(SPECS["rope"], devices)
    params = tiny.like(one.shapes)
    rows = tiny.tokens(5, L + 1)  # 5 rows in batches of 2, or of 4 on 8 devices
    losses, right = Evaluator(one, EvalConfig(batch_tokens=2 * L)).run(params, rows)
    padded = np.concatenate([rows, rows[:3]])
    ids = np.zeros((R, L), np.int32)
    logits = np.asarray(tiny.forward(one.config)(params, padded[:, :-1], ids))[:5]
    own = np.take_along_axis(logits, rows[:, 1:, None], -1)[..., 0]
    assert_close(losses, logsumexp(logits, axis=-1) - own, 1e-6)
    np.testing.assert_array_equal(right, logits.argmax(-1) == rows[:, 1:])


@pytest.mark.parametrize("spec", ["contiguous", "randomized(maximum=40)"])
def test_an_evaluation_depends_on_neither_batches_nor_devices(spec):
    config, text = EvalConfig(lengths=(4, L), stride=2, windows=3), tiny.tokens(3, 2 * L + 1)
    found = []
    for devices, tokens in ((1, 2 * L), (1, 16 * L), (8, 2 * L)):
        one = Evaluator(
            trainer(SPECS["rope"], devices, spec), dataclasses.replace(config, batch_tokens=tokens)
        )
        found.append(one.by_length(tiny.like(one.trainer.shapes), text))
    for other in found[1:]:
        assert_close(other["losses"], found[0]["losses"], 1e-6)


def test_rows_are_trained_on_and_evaluated_at_their_own_length():
    """Where a scheme depends on the length; a document of L tokens is what `length=L` makes it."""
    spec = "rope(base=2, scaling=dynamic_ntk(factor=8, original_length=4{}))"
    free, fixed = (trainer(spec.format(more)) for more in ("", f", length={L}"))
    params, rows = tiny.like(free.shapes), tiny.tokens(4, L + 1)
    losses, plain = (
        Evaluator(one, EvalConfig(batch_tokens=4 * L)).run(params, rows)[0]
        for one in (free, trainer("rope(base=2)"))
    )
    logits = np.asarray(tiny.forward(fixed.config)(params, rows[:, :-1], np.zeros((4, L), int)))
    own = np.take_along_axis(logits, rows[:, 1:, None], -1)[..., 0]
    assert_close(losses, logsumexp(logits, axis=-1) - own, 1e-6)
    assert np.abs(losses - plain).max() > 1e-3
    whole = tiny.batch()  # rows of one document each; of several see tests/test_document_lengths.py
    whole["segments"] = np.zeros_like(whole["segments"])

    @jax.jit
    def trained(params):
        trainers = free, fixed, trainer("rope(base=2)")
        return [one.loss(one.model(params), whole, jax.random.key(0)) for one in trainers]

    free_loss, fixed_loss, plain_loss = trained(params)
    np.testing.assert_allclose(free_loss, fixed_loss, 1e-5)
    assert abs(free_loss - plain_loss) > 1e-4


def test_a_limit_is_the_smallest_of_the_pattern():
    assert tiny.config("learned(length=12)").limit == 12
    assert tiny.config("learned(length=12),learned(length=9)+rope").limit == 9
    for spec in ("rope", "swin(height=2,width=2)"):  # a table of places is none of tokens
        assert tiny.config(spec).limit is None


# 57
def test_an_update_that_is_not_finite_is_not_applied_and_counted():
    one = trainer(SPECS["rope"])
    state, bits = start(one), lambda s: [np.asarray(x) for x in jax.tree.leaves(s[:2])]
    good, bad = tiny.batch(), spoil(tiny.batch())
    for step, (batch, counts) in enumerate(
        [(bad, [1, 1]), (good, [0, 1]), (bad, [1, 2]), (bad, [2, 3]), (good, [0, 3])], 1
    ):
        before = bits(state)
        state, metrics = one.step(state, one.put(batch), np.int32(0))
        same = all(map(np.array_equal, before, bits(state)))
        assert same == (batch is bad) and np.isfinite(metrics.loss) == (batch is good)
        assert state.skipped.tolist() == counts and metrics.skipped == counts[1]
        assert int(state.step) == step and one.finite(state)
    before = bits(state)
    for batch in [bad] * (one.skips + 1) + [good] * 2:  # too many: nothing goes on unseen
        state, _ = one.step(state, one.put(batch), np.int32(0))
        assert all(map(np.array_equal, before, bits(state)))
    assert state.skipped.tolist() == [one.skips + 1, 3 + one.skips + 1]


def test_a_gradient_alone_that_is_not_finite_is_not_applied():
    one = trainer(SPECS["rope"])
    kernel = lambda s: np.asarray(s.params["blocks"][0]["mlp"]["up"]["kernel"])  # noqa: E731
    state = start(one)
    scale = state.params["final_norm"]["scale"]
    state.params["final_norm"]["scale"] = jax.device_put(scale * 1e21, scale.sharding)
    before = kernel(state)
    state, metrics = one.step(state, one.put(tiny.batch()), np.int32(0))
    assert np.isfinite(metrics.loss) and not np.isfinite(metrics.gradient_norm)
    np.testing.assert_array_equal(kernel(state), before)
    assert state.skipped.tolist() == [1, 1]


def test_two_runs_of_one_process_can_save_at_once(tmp_path):
    def saves(name):
        kept = Checkpoints(tmp_path / name)
        rows = iter(grain.MapDataset.range(100).to_iter_dataset())
        for step in range(1, 9):
            kept.save(step, {"x": np.arange(4.0)}, rows, {"name": name})
        found = kept.meta(kept.latest() or 0)
        kept.close()
        return found["name"]

    with futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(saves, "abcd")) == list("abcd")
