"""Training and evaluation: the same numbers on any mesh, after any stop, by any protocol."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import signal
from concurrent import futures

import grain
import jax
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.special import logsumexp

from experiments import generate
from experiments import train as program
from pe_jax.training import sharding, tasks
from pe_jax.training.checkpoint import Checkpoints
from pe_jax.training.config import Config, EvalConfig, MeshConfig, OptimizerConfig
from pe_jax.training.evaluate import PROTOCOLS, Evaluator, pieces
from pe_jax.training.step import State, Trainer
from tests import tiny
from tests.test_data import write
from tests.tiny import SPECS, L, R
from tests.util import assert_close

STEPS = 150
OPTIMIZER = OptimizerConfig(warmup=1, learning_rate=0.01)
pytestmark = pytest.mark.xdist_group("training")  # they share programs


@functools.cache
def trainer(spec: str, devices: int = 1, positions: str = "contiguous") -> Trainer:
    """The program of a tiny model on one device, or on all eight."""
    config = MeshConfig(data=1) if devices == 1 else MeshConfig(data=2, fsdp=2, model=2)
    mesh = sharding.make_mesh(config, jax.devices()[:devices])
    return Trainer(tiny.config(spec), OPTIMIZER, STEPS, mesh, positions)


def start(trainer: Trainer) -> State:
    """A state of noise, laid out as the trainer wants it."""
    params = tiny.like(trainer.shapes)
    zeros = jax.tree.map(
        lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(trainer.tx.init, params)
    )
    return jax.device_put(
        State(params, zeros, np.int32(0), np.zeros(2, np.int32)), trainer.shardings
    )


def steps(trainer: Trainer, count: int = 1, batch=None) -> tuple[State, list[list[float]]]:
    """The state after some steps, and loss and gradient norm of each."""
    state, found = start(trainer), []
    for k in range(count):
        rows = tiny.batch(k) if batch is None else batch
        state, values = trainer.step(state, trainer.put(rows), np.int32(0))
        found.append([float(values["loss"]), float(values["gradient_norm"])])
    return state, found


# One program on any mesh.


@tiny.few("learned transformer_xl fox two", {**SPECS, "two": "t5+rope,nope"})
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


def test_weights_go_round_and_activations_stay(capfd):
    """Left to itself, XLA gathered the rows of all devices, a part of each one's width."""
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, model=2), jax.devices())
    one = Trainer(tiny.config("t5+rope", remat=True), OPTIMIZER, STEPS, mesh)
    text = one.compile(R, L).as_text()
    assert re.search(rf"f32\[{R // 4},{L},16\]", text) and "all-gather" in text
    assert not re.search(rf"f32\[({R},{L}|{R * L}),\d+\]", text)
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


def test_eight_devices_start_as_one_does():
    shardings = trainer(SPECS["rope"], 8).shardings
    states = [jax.tree.map(np.asarray, trainer(SPECS["rope"], n).init(3)) for n in (1, 8)]
    assert_close(*states, 1e-6)
    assert {len(s.device_set) for s in jax.tree.leaves(shardings)} == {8}


def test_all_seeds_share_one_program():
    one = Trainer(tiny.config("nope"), OPTIMIZER, STEPS, trainer(SPECS["rope"]).mesh)
    first = one.compile(R, L)
    losses = []
    for seed in (0, 1, 2):
        state, values = one.step(one.init(seed), one.put(tiny.batch()), np.int32(seed))
        losses.append(float(values["loss"]))
        assert int(state.step) == 1 and one.compile(R, L) is first
    assert len(set(losses)) == 3 and one.init._cache_size() == 1


def test_dropout_is_drawn_anew_at_every_step_and_for_every_seed():
    mesh = trainer(SPECS["rope"]).mesh
    one = Trainer(tiny.config("nope", dropout=0.3), OPTIMIZER, STEPS, mesh)

    def loss(step: int, seed: int) -> float:
        state = start(one)._replace(step=jax.device_put(np.int32(step), one.shardings.step))
        return float(one.step(state, one.put(tiny.batch()), np.int32(seed))[1]["loss"])

    a, b, c = loss(0, 0), loss(1, 0), loss(0, 1)
    assert len({a, b, c}) == 3 and loss(0, 0) == a


def test_one_batch_is_learned_by_heart():
    one = trainer(SPECS["rope"])
    state, batch, found = one.init(0), one.put(tiny.batch()), []
    for _ in range(STEPS):
        state, values = one.step(state, batch, np.int32(0))
        found.append(float(values["loss"]))
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

    def run(self, params, rows):
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


def test_rows_are_trained_on_and_evaluated_at_their_own_length():
    """Where a scheme depends on the length; a row of L tokens is then what `length=L` makes it."""
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
    assert steps(free)[1] == steps(fixed)[1] != steps(trainer("rope(base=2)"))[1]


def test_a_limit_is_the_smallest_of_the_pattern():
    assert tiny.config("learned(length=12)").limit == 12
    assert tiny.config("learned(length=12),learned(length=9)+rope").limit == 9
    assert tiny.config(SPECS["rope"]).limit is None


# The program: stopped, resumed, refused, diverged.


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """One device, and one compiled program for all runs that have the same settings."""
    with pytest.MonkeyPatch.context() as patch:
        make = sharding.make_mesh
        patch.setattr(
            sharding, "make_mesh", lambda c, devices=None: make(c, devices or jax.devices()[:1])
        )
        patch.setattr(program, "Trainer", functools.cache(Trainer))
        yield


@pytest.fixture
def config(tmp_path) -> Config:
    """A tiny run on a tiny text."""
    letters = np.random.default_rng(0).integers(97, 103, 900, dtype=np.uint8).tobytes()
    names = ("train/a", "train/b", "train/c", "validation/a", "test/a")
    data = write(tmp_path / "text", {n: letters[99 * k :][:150] for k, n in enumerate(names)})
    return Config(
        workdir=str(tmp_path / "run"),
        data=data,
        length=L,
        batch=R,
        steps=6,
        log_every=1,
        model=tiny.config(vocab=0, dropout=0.1),
        optimizer=OPTIMIZER,
        eval=EvalConfig(lengths=(4, L), windows=2, stride=4),
    )


def main(config: Config, monkeypatch) -> State | None:
    """Runs the program on a copy of the config; returns the state that training ended with."""
    states, train = [None], program.train
    with monkeypatch.context() as patch:
        patch.setattr(program, "train", lambda *a: states.append(train(*a)) or states[-1])
        program.main(dataclasses.replace(config, model=dataclasses.replace(config.model)))
    return states[-1]


def at_step(patch, step: int, act) -> None:
    """Calls `act` while the step is under way."""
    put, count = Trainer.put, iter(range(1, 10**6))
    patch.setattr(Trainer, "put", lambda self, x: (next(count) == step and act(), put(self, x))[1])


def losses(config: Config) -> list[tuple[int, float]]:
    lines = pathlib.Path(config.workdir, "metrics.jsonl").read_text().splitlines()
    return [(row["step"], row["loss"]) for row in map(json.loads, lines)]


# 42, 50, 51
@pytest.mark.parametrize(
    "number, status, positions",
    [(signal.SIGINT, 130, "contiguous"), (signal.SIGTERM, 143, "randomized(maximum=40)")],
)
def test_a_stopped_run_resumes_bitwise(config, monkeypatch, number, status, positions, tmp_path):
    config = change(config, positions=positions)
    straight = dataclasses.replace(config, workdir=str(tmp_path / "straight"))
    want = main(straight, monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        at_step(patch, 3, lambda: os.kill(os.getpid(), number))
        main(config, monkeypatch)
    assert end.value.code == status
    assert not (tmp_path / "run" / "evaluation.json").exists()
    got = main(config, monkeypatch)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert losses(config) == losses(straight) and len(losses(config)) == 6
    assert int(got.step) == 6 and losses(config)[-1][1] < losses(config)[0][1]
    found, wanted = (
        json.loads((tmp_path / n / "evaluation.json").read_text()) for n in ("run", "straight")
    )
    assert found["losses"] == wanted["losses"] and found["status"] == "ok"
    model, _ = generate.load(tmp_path / "run")
    read = nnx.as_pure(nnx.state(model, nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, read, got.params)
    with monkeypatch.context() as patch:  # 42: nothing is left to do
        patch.setattr(program, "train", None)
        program.main(config)


def refused(config, monkeypatch, capsys, *words: str, status: int = 2) -> None:
    """The program ends with one line that holds the words, and changes no file."""

    def files():
        found = [p for p in pathlib.Path(config.workdir).rglob("*") if p.is_file()]
        return {str(p): p.read_bytes() for p in found if "events" not in str(p)}

    before = files()
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(config, monkeypatch)
    error = capsys.readouterr().err
    assert end.value.code == status and error.startswith("error: ") and error.count("\n") == 1
    assert all(word in error for word in words), error
    assert files() == before


def change(config, **fields):
    """A copy with some fields, nested ones as dicts."""
    fields = {
        name: dataclasses.replace(getattr(config, name), **x) if isinstance(x, dict) else x
        for name, x in fields.items()
    }
    return dataclasses.replace(config, **fields)


# 35, 36, 37, 39, 44
def test_a_run_with_other_settings_is_refused(config, monkeypatch, capsys, tmp_path):
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        main(config, monkeypatch)

    def no(config, *words):
        refused(config, monkeypatch, capsys, *words)

    made = "the checkpoint was made with "
    no(change(config, seed=1), "seed=1", made + "0")
    no(change(config, batch=16), "batch=16", made + "8")
    no(change(config, length=8), "length=8", made + "12")
    no(change(config, positions="shape(maximum=9)"), "positions=", made + "'contiguous'")
    no(change(config, model={"width": 8}), "model.width=8", made + "16")
    no(change(config, model={"dtype": "bfloat16"}), "model.dtype=", made + "'float32'")
    no(change(config, optimizer={"b1": 0.5}), "optimizer.b1=0.5", made + "0.9")
    kept = [*(tmp_path / "run" / "checkpoints" / "2").rglob("*")]
    for path in (max(kept, key=lambda p: p.stat().st_size), kept[0].parent / "meta" / "metadata"):
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        no(config, f"checkpoint 2 is damaged: {path} is not what was saved", "use a new workdir")
        path.write_bytes(good)
    (tmp_path / "text" / "train" / "a").write_bytes(b"another text " * 20)
    no(config, "corpus=", made)
    os.remove(f"{config.workdir}/config.json")  # the checkpoint knows too
    with pytest.raises(SystemExit) as end:
        main(config, monkeypatch)
    error = capsys.readouterr().err
    assert end.value.code == 2 and "corpus=" in error and made in error


# 42
def test_a_finished_run_does_nothing_and_is_not_taken_for_a_longer_one(config, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", lambda *_: None)
        main(config, monkeypatch)
        patch.setattr(program, "train", None)
        program.main(change(config))
    refused(change(config, steps=12), monkeypatch, capsys, "steps=12", "made with 6")
    lengths = {"lengths": (4, 8), "stride": 4}
    refused(change(config, eval=lengths), monkeypatch, capsys, "eval.lengths=[4, 8]", "[4, 12]")


class Poisoned:
    """A trainer whose parameters are spoilt before its third step, or after its last one."""

    def __init__(self, trainer: Trainer, value: float, after: int | None = None):
        self.trainer, self.value, self.after, self.steps = trainer, value, after, 0

    def __getattr__(self, name):
        return getattr(self.trainer, name)

    def step(self, state, batch, seed):
        self.steps += 1
        if self.after is None and self.steps == 3:
            self.spoil(state)
        state, values = self.trainer.step(state, batch, seed)
        if self.steps == self.after:
            self.spoil(state)
        return state, values

    def spoil(self, state):
        kernel = state.params["blocks"][0]["mlp"]["down"]["kernel"]
        spoilt = jax.device_put(kernel.at[1].set(self.value), kernel.sharding)
        state.params["blocks"][0]["mlp"]["down"]["kernel"] = spoilt


# 27, 57
@pytest.mark.parametrize(
    "value, words",
    [
        (np.nan, ("loss nan by step 6", "parameter", "mlp", "down")),
        (3e38, ("loss nan by step 6", "the output of layer 1 is not finite")),
    ],
)
def test_divergence_names_the_layer_and_saves_nothing(
    config, monkeypatch, capsys, tmp_path, value, words
):
    diverges(config, monkeypatch, capsys, value, None, *words, "4 updates in a row skipped")


# 57
def test_what_is_not_finite_is_never_saved_even_where_no_loss_shows_it(
    config, monkeypatch, capsys, tmp_path
):
    words = "by step 6", "parameter", "mlp", "down", "0 updates in a row skipped"
    diverges(config, monkeypatch, capsys, np.nan, 6, *words)


def diverges(config, monkeypatch, capsys, value, after, *words) -> None:
    """Ends with 1 and one line that holds the words; nothing is saved."""
    prepare = program.prepare
    monkeypatch.setattr(program, "prepare", lambda *a: Poisoned(prepare(*a), value, after))
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(config, monkeypatch)
    error = capsys.readouterr().err
    assert end.value.code == 1 and error.count("\n") == 1
    for word in ("error: loss ", *words, "(optimizer.skips=3); nothing was saved"):
        assert word in error, error
    folder = pathlib.Path(config.workdir)
    assert not [*folder.glob("checkpoints/*")] and not (folder / "evaluation.json").exists()


def spoil(batch: dict) -> dict:
    """A batch whose loss is NaN: infinite weights, as of a reader gone wrong."""
    return {**batch, "weights": np.where(batch["weights"] > 0, np.float32(np.inf), 0)}


# 57
def test_an_update_that_is_not_finite_is_not_applied_and_counted():
    one = trainer(SPECS["rope"])
    state, bits = start(one), lambda s: [np.asarray(x) for x in jax.tree.leaves(s[:2])]
    good, bad = tiny.batch(), spoil(tiny.batch())
    for step, (batch, counts) in enumerate(
        [(bad, [1, 1]), (good, [0, 1]), (bad, [1, 2]), (bad, [2, 3]), (good, [0, 3])], 1
    ):
        before = bits(state)
        state, values = one.step(state, one.put(batch), np.int32(0))
        same = all(map(np.array_equal, before, bits(state)))
        assert same == (batch is bad) and np.isfinite(values["loss"]) == (batch is good)
        assert state.skipped.tolist() == counts and values["skipped"] == counts[1]
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
    state, values = one.step(state, one.put(tiny.batch()), np.int32(0))
    assert np.isfinite(values["loss"]) and not np.isfinite(values["gradient_norm"])
    np.testing.assert_array_equal(kernel(state), before)
    assert state.skipped.tolist() == [1, 1]


# 57
def test_a_few_updates_are_skipped_and_more_end_the_run_at_its_last_checkpoint(
    config, monkeypatch, capsys, tmp_path
):
    def spoilt(config, *steps):
        put, count = Trainer.put, iter(range(1, 100))
        with monkeypatch.context() as patch:
            patch.setattr(
                Trainer, "put", lambda self, x: put(self, spoil(x) if next(count) in steps else x)
            )
            return main(config, monkeypatch)

    config = change(config, save_every=2)
    state = spoilt(config, 2, 4, 6)
    assert state.skipped.tolist() == [1, 3]
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] is None for row in rows] == [False, True] * 3
    assert [row["skipped"] for row in rows] == [0, 1, 1, 2, 2, 3]
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert np.isfinite(found["losses"]["sliding"]["4"]).all()
    worse = change(config, workdir=str(tmp_path / "worse"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        spoilt(worse, 3, 4, 5, 6)
    error = capsys.readouterr().err
    assert end.value.code == 1 and error.count("\n") == 1
    for word in ("loss nan by step 6: the gradient; 4 updates", "checkpoint is step 4"):
        assert word in error
    assert Checkpoints(tmp_path / "worse" / "checkpoints", read_only=True).steps() == [2, 4]


# 55
def test_data_that_dies_while_training_is_one_line_and_no_hang(
    config, monkeypatch, capsys, tmp_path
):
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        at_step(patch, 2, lambda: shutil.rmtree(tmp_path / "text"))
        main(change(config, steps=500), patch)
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1
    for word in ("error: no data for step ", "cannot read", "text/train/", "restore it"):
        assert word in error, error


# 56
def test_rows_after_the_checkpoint_and_torn_ones_are_dropped_when_it_continues(
    config, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        at_step(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        main(config, monkeypatch)
    path = tmp_path / "run" / "metrics.jsonl"
    good = path.read_text()
    path.write_text(good + '{"step": 4, "loss": 1.0}\n[]\n{"step": 5, "lo')
    main(config, monkeypatch)
    assert path.read_text().startswith(good)
    assert [step for step, _ in losses(config)] == [1, 2, 3, 4, 5, 6]


# 28, 29
@pytest.mark.parametrize(
    "fields, words",
    [
        ({"length": 600}, ("length=600", "fewer than one row")),
        ({"data": "synthetic:copy", "length": 3}, ("length=3", "at least 4")),
        ({"data": "synthetic:copy", "eval": {"lengths": (3, 6), "stride": 1}}, ("eval.lengths",)),
        ({"data": "text:nowhere"}, ("data='text:nowhere'", "no file there")),
        ({"model": {"vocab": 100}}, ("model.vocab=100", "at least 257")),
        ({"model": {"encoding": "learned(length=11)"}}, ("length=12", "defined for 11")),
        ({"eval": {"windows": 999}}, ("count=999", "ask for less")),
        ({"mesh": {"data": 3}}, ("mesh.data=3", "must be the 1 devices; sizes from [1]")),
    ],
)
def test_what_cannot_train_is_refused_before_anything_is_written(
    config, monkeypatch, capsys, fields, words, tmp_path
):
    refused(change(config, **fields), monkeypatch, capsys, *words)
    assert not (tmp_path / "run").exists()


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
