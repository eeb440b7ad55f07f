"""The training program ends with an error: refused, diverged, without data."""

import dataclasses
import json
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest

from experiments.running.training import training_loop as program
from pe_jax.training import tokenizer
from pe_jax.training.checkpoint import Checkpoints, difference
from pe_jax.training.config import Config
from pe_jax.training.step import Trainer
from tests.experiments.tiny_run import (
    main,
    refused,
    rows_of,
    stopped,
    tiny_config,  # noqa: F401
)
from tests.trainers import at_step, change, shared_programs, spoil  # noqa: F401

pytestmark = pytest.mark.xdist_group("runs")  # they share programs


# 35, 36, 37, 39, 44
def test_a_run_with_other_settings_is_refused(config, monkeypatch, capsys, tmp_path):
    stopped(config, monkeypatch, 2)

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


# 128
def test_a_run_continues_where_its_text_has_moved(config, monkeypatch, tmp_path):
    stopped(config, monkeypatch, 2)
    (tmp_path / "text").rename(tmp_path / "moved")
    main(change(config, data=f"text:{tmp_path / 'moved'}/"), monkeypatch)
    assert (tmp_path / "run" / "evaluation.json").exists()


def test_a_run_with_another_tokenizer_of_the_same_name_is_refused(
    config, monkeypatch, capsys, tmp_path
):
    text = (tmp_path / "text" / "train" / "a").read_bytes()
    path = f"{tmp_path}/bpe.json"
    tokenizer.train_bpe([text], path)
    config = change(config, tokenizer=f"bpe:{path}", length=4, eval={"lengths": (4,)})
    stopped(config, monkeypatch, 2)
    before = tokenizer.get(f"bpe:{path}")
    tokenizer.train_bpe([text[::-1]], path)
    config = change(config, model={"vocab": before.vocab})
    refused(config, monkeypatch, capsys, "tokens=", "the checkpoint was made with", before.digest)


# 42
def test_a_finished_run_does_nothing_and_is_not_taken_for_a_longer_one(config, monkeypatch, capsys):
    main(config, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(program, "train", None)
        program.run(change(config))
    refused(change(config, steps=12), monkeypatch, capsys, "steps=12", "made with 6")
    other = change(config, eval={"lengths": (4, 8), "stride": 4})
    said = "eval.lengths=[4, 8]", "was made with [4, 12]; take it away and repeat the command"
    refused(other, monkeypatch, capsys, *said)
    evaluation = pathlib.Path(config.workdir, "evaluation.json")
    evaluation.unlink()  # evaluated at other lengths, and not trained again
    rows = rows_of(config)
    main(other, monkeypatch)
    assert [*json.loads(evaluation.read_text())["losses"]["non-overlapping"]] == ["4", "8"]
    assert rows_of(config) == rows


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
        state, metrics = self.trainer.step(state, batch, seed)
        if self.steps == self.after:
            self.spoil(state)
        return state, metrics

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
    rows = rows_of(config)
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


def test_a_field_that_was_added_since_a_run_has_its_default_there():
    now = json.loads(json.dumps(dataclasses.asdict(Config())))
    saved = json.loads(json.dumps(now))
    del saved["model"]["norm_epsilon"], saved["optimizer"]["b2"]
    assert difference(saved, now) is None
    now["model"]["norm_epsilon"] = 1e-5
    assert difference(saved, now) == ("model.norm_epsilon", 1e-6, 1e-5)
