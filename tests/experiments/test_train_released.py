"""Runs of the training program that start from a released checkpoint."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments import generate, train
from experiments.running.configs.compare import CompareConfig
from experiments.running.training import trained_run
from experiments.running.training import training_loop as program
from pe_jax.models.config import ModelConfig
from pe_jax.released import files, load, start
from pe_jax.training import data, step, tokenizer
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig
from pe_jax.training.evaluate import Evaluator
from tests.experiments.tiny_run import losses, main, refused
from tests.released import tiny_folder
from tests.test_corpus import write
from tests.trainers import at_step, change, shared_programs  # noqa: F401

pytestmark = pytest.mark.xdist_group("runs")  # they share programs
LENGTH, BATCH = 16, 4
THIRD = 1 / 3  # 2 of the 6 channels of a head
YARN = "rope(scaling=yarn(factor=2,original_length=16))"


class Killed(BaseException):
    """The end of a process that saves nothing."""


def kill():
    raise Killed


@pytest.fixture(name="folder", scope="module")
def written_folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("hub") / "model"
    tiny_folder.write(folder, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    return folder


@pytest.fixture(name="config")
def tiny_config(folder, tmp_path) -> Config:
    letters = np.random.default_rng(0).integers(97, 103, 900, dtype=np.uint8).tobytes()
    names = ("train/a", "train/b", "train/c", "validation/a", "test/a")
    return Config(
        workdir=str(tmp_path / "run"),
        checkpoint=str(folder),
        data=write(tmp_path / "text", {n: letters[99 * k :][:200] for k, n in enumerate(names)}),
        length=LENGTH,
        batch=BATCH,
        steps=8,
        log_every=1,
        save_every=2,
        positions="pose(maximum=32)",
        model=ModelConfig(encoding=YARN, remat=True),
        optimizer=OptimizerConfig(learning_rate=0.01, warmup=1),
        eval=EvalConfig(lengths=(LENGTH,), windows=2, stride=LENGTH),
    ).check()


def test_a_run_starts_from_the_weights_is_killed_continues_and_is_exported(
    config, folder, monkeypatch, tmp_path
):
    peace = main(change(config, workdir=str(tmp_path / "peace")), monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 6, kill)
        main(config, patch)
    saved = sorted(p.name for p in pathlib.Path(config.workdir, "checkpoints").iterdir())
    assert saved == ["2", "4"]
    with monkeypatch.context() as patch:
        patch.setattr(program, "released", lambda *_: pytest.fail("the checkpoint is read again"))
        state = main(config, patch)
    jax.tree.map(np.testing.assert_array_equal, state.params, peace.params)

    checkpoint = files.read(folder)
    model = load.model(checkpoint, encoding=config.model.encoding)
    (source,) = program.open_source(config, config.eval)
    mesh = program.prepare(config).mesh
    batch = next(program.batches(config, source, mesh))
    key = jax.random.fold_in(jax.random.key(config.seed), 0)
    key = jax.random.fold_in(key, step.POSITION_FOLD)
    scheme = program.prepare(config).position_scheme
    rows = [batch[name][:, :-1] for name in ("tokens", "segments")]
    positions = scheme.training_positions(key, *rows)
    assert positions.max() > LENGTH  # they skip
    want = float(step.mean_loss(model, batch, None, positions))
    by_step = [loss for _, loss in losses(config)]
    np.testing.assert_allclose(by_step[0], want, rtol=1e-5)
    assert by_step[-1] < by_step[0] - 0.3, by_step

    target = tmp_path / "exported"
    monkeypatch.setattr(train.flags, "FLAGS", Flags(export=str(target)))
    train.main(config)  # it is finished: nothing but the export
    again = load.model(files.read(target))
    assert again.config.encoding == config.model.encoding
    params = nnx.as_pure(nnx.state(again, nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(state.params))
    text = generate.text(pathlib.Path(config.workdir), "abc", 5, 0.0, 0, 0)
    assert text.startswith("abc") and len(text) > 3


@dataclasses.dataclass
class Flags:
    """The flags of the program."""

    export: str | None = None
    profile: bool = False


def test_a_run_is_bound_to_the_files_of_its_checkpoint(config, monkeypatch, capsys, tmp_path):
    folder = tmp_path / "model"
    tiny_folder.write(folder)
    config = change(config, checkpoint=str(folder), tokenizer="bytes", steps=2).check()
    config = change(config, tokenizer=f"checkpoint:{folder}")
    main(config, monkeypatch)
    moved = folder.rename(tmp_path / "moved")
    other = change(config, checkpoint=str(moved), tokenizer=f"checkpoint:{moved}")
    main(other, monkeypatch)  # finished, and the same wherever it lies
    for name, word in (("model.safetensors", "weights="), ("tokenizer.json", "tokenizer=")):
        path = moved / name
        good = path.read_bytes()
        path.write_bytes(good + b" ")
        start._sha256.cache_clear()  # another process
        refused(other, monkeypatch, capsys, word, "the checkpoint was made with")
        path.write_bytes(good)
        start._sha256.cache_clear()


def test_surgery_keeps_all_weights(config, folder):
    for encoding in ("rope*3,nope", "nope", f"rope(fraction={THIRD})", "rope@window=5,alibi"):
        changed = change(config, model={"encoding": resolved(folder, encoding).encoding})
        trainer = program.prepare(changed)
        params = program.released(changed, trainer.mesh)
        jax.tree.map(lambda x, y: x.shape == y.shape or pytest.fail(), params, trainer.shapes)
        tensors = load.tensors(trainer.model(params), files.read(folder).config)
        for name, want in tiny_folder.tensors().items():
            np.testing.assert_array_equal(tensors[name], want, name)


def resolved(source, encoding="rope", **fields) -> ModelConfig:
    return start.model_config(str(source), ModelConfig(encoding=encoding, **fields))


def test_a_checkpoint_decides_the_model_and_a_run_its_encodings(folder, tmp_path):
    same = resolved(folder)
    assert (same.layers, same.width, same.vocab, same.encoding) == (4, 36, 31, "rope(base=500.0)")
    changed = resolved(folder, f"nope,rope(fraction={THIRD}),t5", dtype="bfloat16", remat=True)
    half = f"rope(base=500.0,fraction={THIRD})"
    assert changed.encoding == f"nope,{half},t5,nope"  # repeated, and cut at the last layer
    assert changed.dtype == "bfloat16" and changed.remat
    assert start.model_config(str(folder), changed) == changed
    gemma = tmp_path / "gemma"
    tiny_folder.write(gemma, "gemma3")
    near, far = "rope(base=1000.0{})@window=5", "rope(base=1000000.0{},scaling=linear(factor=8.0))"
    pattern = f"{near}*2,{far}"
    assert resolved(gemma).encoding == pattern.format("", "")
    fraction = ",fraction=0.25"
    assert resolved(gemma, "rope(fraction=0.25)").encoding == pattern.format(fraction, fraction)
    assert resolved(gemma, "nope").encoding == "nope@window=5*2,nope"
    assert resolved(gemma, "nope@window=9").encoding == "nope@window=9"
    bloom = tmp_path / "bloom"
    tiny_folder.write(bloom, "bloom")
    assert resolved(bloom).encoding == "alibi" and resolved(bloom, "nope").encoding == "nope"


def test_the_logits_of_a_large_vocabulary_are_made_by_chunks(folder, monkeypatch):
    checkpoint = files.read(folder)
    model = load.model(checkpoint)
    rows = np.random.default_rng(0).integers(0, 27, (3, 12))
    batch = {"tokens": rows, "segments": np.ones_like(rows)}
    batch["weights"] = np.random.default_rng(1).random(rows.shape, np.float32)

    graph, params = nnx.split(model)

    def run(remat):
        def loss(params):
            own = nnx.merge(graph, params)
            own.config = dataclasses.replace(own.config, remat=remat)
            return step.mean_loss(own, batch, None)

        return jax.value_and_grad(loss)(params)

    whole = run(False)
    for logits in (3 * 31 * 4, 1):  # chunks of 4 tokens, the last one padded, and of one
        monkeypatch.setattr(step, "LOGITS", logits)
        text = str(jax.make_jaxpr(lambda: run(True))())
        assert f"f32[3,11,{31}]" not in text
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-6), run(True), whole)


def test_rows_begin_with_the_token_that_begins_documents(config, tmp_path, monkeypatch):
    folder = tmp_path / "begins"
    checkpoint = tiny_folder.write(folder, begins=True)
    tokens = tokenizer.get(f"checkpoint:{folder}")
    begin, end = tiny_folder.BEGIN_ID, tiny_folder.END_ID
    assert (tokens.begin, tokens.eos, tokens.vocab) == (begin, end, end + 1)
    assert tokens.encode(b"ab").tolist() == [0, 1] and tokens.decode([begin, 0, 1, end]) == "ab"
    batches = data.train_iterator(data.load(config.data), tokens, length=LENGTH, batch=4, seed=0)
    rows = [next(batches) for _ in range(12)]
    ids = np.concatenate([batch["tokens"] for batch in rows])
    assert (ids[:, 0] == begin).all()
    ends = np.argwhere(ids[:, :-1] == end)
    assert len(ends) and (ids[ends[:, 0], ends[:, 1] + 1] == begin).all()
    model = load.model(checkpoint)
    (source,) = program.open_source(change(config, tokenizer=f"checkpoint:{folder}"), config.eval)
    evaluator = Evaluator(program.prepare(config), config.eval, source.tokens.begin)
    params = program.released(config, evaluator.trainer.mesh)
    text = source.text[:, : LENGTH + 1]
    begun = np.concatenate([np.full((len(text), 1), begin), text[:, 1:]], axis=1)
    logits = load.model(checkpoint, encoding=config.model.encoding)(begun[:, :-1])
    want = step.token_losses(logits, jnp.asarray(text[:, 1:]))
    assert model.config.vocab == 31
    np.testing.assert_allclose(evaluator.run(params, text)[0], want, rtol=1e-4)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"checkpoint": "/nowhere/at/all"}, ("no such file or folder",)),
        ({"model": {"width": 8}}, ("model.width=8: checkpoint", "has 36; leave out sizes")),
        ({"model": {"tied": False, "window": 3}}, ("model.window=3",)),
        ({"model": {"encoding": "rop"}}, ("'rop'", "rope")),
        ({"positions": "pose(maximum=15)"}, ("maximum must be at least length=16",)),
        ({"positions": "pose(chunks=1)"}, ("chunks=1", "at least 2")),
        ({"tokenizer": "checkpoint"}, ("tokenizer='checkpoint' is unknown",)),
    ],
)
def test_a_config_that_contradicts_its_checkpoint_is_refused(folder, fields, words):
    with pytest.raises((ValueError, OSError)) as info:
        config = change(Config(checkpoint=str(folder), length=LENGTH), **fields).check()
        tokenizer.get(config.tokenizer)
    assert "\n" not in str(info.value) and all(x in str(info.value) for x in words), info.value


def test_a_comparison_takes_no_checkpoint(folder):
    with pytest.raises(ValueError, match="pass it to experiments.train"):
        CompareConfig(checkpoint=str(folder)).check()


def test_an_export_that_cannot_be_is_refused_before_the_first_step(config, folder, tmp_path):
    target = tmp_path / "new"
    trained_run.check_export(config, target)

    def no(config, words, error=ValueError):
        with pytest.raises(error, match=words):
            trained_run.check_export(config, target)
        assert not target.exists()

    for encoding, layer in (("nope", 0), ("rope*3,nope", 3), (f"rope(fraction={THIRD})", 0)):
        spec = resolved(folder, encoding).encoding
        words = rf"layer {layer} has .*: the config says rope\(base=500.0\), and only a scaling"
        no(change(config, model={"encoding": spec}), words)
    no(change(config, checkpoint=""), "a run without checkpoint=")
    (tmp_path / "model").mkdir()
    target = tmp_path / "model"
    (target / "file").write_text("")
    with pytest.raises(FileExistsError, match="it exists; choose another folder"):
        trained_run.check_export(config, target)


def test_what_a_checkpoint_lacks_is_named(folder, tmp_path):
    bare = tmp_path / "bare"
    tiny_folder.write(bare)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="no tokenizer that is read; add tokenizer.json, or pass"):
        tokenizer.get(f"checkpoint:{bare}")
    named = dataclasses.replace(files.read(folder), extra={"stop": [3]})
    assert start.ends(named) == (None, tiny_folder.END_ID)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "rwkv"}
    (bare / "config.json").write_text(json.dumps(config))
    start.read.cache_clear()
    with pytest.raises(ValueError, match=f"checkpoint='{bare}': model_type='rwkv'"):
        Config(checkpoint=str(bare)).check()
