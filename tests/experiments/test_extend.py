"""Longer contexts from a trained model: methods, fine-tune, search, what is refused."""

import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import signal

import jax
import numpy as np
import pytest

from experiments.programs import extend as program
from experiments.reporting import extension_report
from experiments.running.configs.extend import ExtendConfig
from experiments.running.extension import bases, longrope_search, methods, runs
from experiments.running.files import run_names, table
from experiments.running.files.provenance import save_json
from experiments.running.process import signals
from experiments.running.schedule.work import Worker
from experiments.running.training import trained_run
from experiments.running.training import training_loop as base_program
from pe_jax.encodings import make, parse
from pe_jax.encodings.registry import format_encoding
from pe_jax.encodings.rope_scaling import Linear
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.models.config import ModelConfig
from pe_jax.training import sharding
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig
from pe_jax.training.evaluate import Evaluator
from tests.experiments.extensions import TARGET, L, base_config, data, settings
from tests.trainers import at_step, change, shared_programs  # noqa: F401

MAKE_MESH = sharding.make_mesh
pytestmark = pytest.mark.xdist_group("extend")


def run(config: ExtendConfig) -> dict:
    """Entries of results.json by name."""
    program.main(config)
    found = json.loads(pathlib.Path(config.workdir, "results.json").read_text())
    return {entry["name"]: entry for entry in found["encodings"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Config:
    """A finished run of two steps."""
    folder = tmp_path_factory.mktemp("extend")
    config = base_config(folder, data=data(folder))
    base_program.run(config)
    return config


@pytest.fixture(scope="module")
def found(base, tmp_path_factory):
    """Every method without a fine-tune: folder, and entries by name."""
    folder = tmp_path_factory.mktemp("extended")
    return folder, run(settings(base, folder))


def test_the_method_that_changes_nothing_gives_the_evaluation_of_the_run_itself(base, found):
    own = json.loads(pathlib.Path(base.workdir, "evaluation.json").read_text())
    same = found[1]["rope"]["seeds"]["0"]["plain"]
    assert same["losses"] == own["losses"] and same["by_position"] == own["by_position"]


def test_every_method_is_another_model_beyond_the_trained_length_and_finite(found):
    folder, entries = found
    assert len(entries) == len(ExtendConfig().encodings)
    losses = {n: e["seeds"]["0"]["plain"]["losses"]["sliding"] for n, e in entries.items()}
    assert all(np.isfinite(x).all() for by in losses.values() for x in by.values())
    beyond = {n: tuple(by[str(TARGET)]) for n, by in losses.items()}
    within = {n for n, by in losses.items() if by[str(L)] == losses["rope"][str(L)]}
    # dynamic NTK's factor is the length over the trained one, 2 there; log-length is yet to learn
    same = {("ntk", "dynamic_ntk"), ("rope", "rope+log_length")}
    for a in beyond:
        for b in beyond:
            assert a >= b or (beyond[a] == beyond[b]) == ((b, a) in same or (a, b) in same), (a, b)
    assert within == {"rope", "rope+log_length", "dynamic_ntk"}  # these change nothing within it
    assert entries["rope+log_length"]["encoding"] == "rope+log_length"
    rows = table.read(folder / "results.csv")
    assert sum(row.test == "sliding" for row in rows) == len(entries) * 2
    keys = [row for row in rows if row.test == "passkeys: exact"]
    assert len(keys) == len(entries) * 2 * 2 and all(0 <= row.value <= 1 for row in keys)
    assert all((folder / f"{n}.png").stat().st_size > 1000 for n in ("loss-sliding", "passkeys"))


def test_a_spec_is_filled_from_the_run_and_read_back(base, found):
    specs = {name: entry["encoding"] for name, entry in found[1].items()}
    assert specs["rope"] == "rope" and specs["rerope"] == f"rerope(window={L // 2})"
    assert specs["self_extend"] == f"self_extend(window={L // 2},group=3)"  # 52 + 3·52 = 208
    assert specs["dual_chunk"] == f"dual_chunk(chunk_size={L * 3 // 4},local_size={L // 16})"
    model = ModelConfig(encoding="rope(base=500.0)*2,nope", layers=3)
    spec = "rope(scaling=yarn(factor={factor},original_length={length}))"
    near, _, last = parse(methods.extended(spec, methods.Trained(model, L, 2.0)))
    assert near.base == 500.0 and near.scaling.factor == 2.0 and near.scaling.original_length == L
    assert format_encoding(last) == "nope"
    for name, encoding in specs.items():
        assert format_encoding(parse(encoding)[0]) == encoding, name


def test_a_rotation_more_is_added_to_the_rope_of_the_run():
    trained = methods.Trained(ModelConfig(encoding="rope(base=500.0),nope", layers=2), L, 2.0)
    first, last = parse(methods.extended("rope+temperature(floor_scale=64)", trained))
    rope, temperature = first.parts
    assert rope.base == 500.0 and temperature.floor_scale == 64
    assert format_encoding(last) == "nope"


def test_learned_frequencies_are_kept_by_a_method_or_it_is_refused():
    trained = methods.Trained(ModelConfig(encoding="lerope(base=500.0)", layers=1), L, 2.0)
    linear = "scaling=linear(factor={factor})"
    (kept,) = parse(methods.extended(f"lerope({linear})", trained))
    assert kept == make("lerope", base=500.0, scaling=Linear(2.0))
    with pytest.raises(ValueError, match="drops parameters: the run's frequencies are learned"):
        methods.extended(f"rope({linear})", trained)


def test_what_a_method_adds_to_the_parameters_keeps_its_initial_values():
    trained = {"w": np.ones(2), "layers": [{"a": np.full(3, 2.0)}]}
    fresh = {"w": np.zeros(2), "layers": [{"a": np.zeros(3), "more": np.full(1, 7.0)}]}
    got = runs.with_trained(fresh, trained)
    want = {"w": np.ones(2), "layers": [{"a": np.full(3, 2.0), "more": np.full(1, 7.0)}]}
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_a_model_that_drops_rope_is_tuned_at_the_trained_length_on_as_many_tokens(
    base, tmp_path, monkeypatch
):
    monkeypatch.setattr(extension_report.Page, "drawings", lambda _: [])
    owner = bases.read_base(pathlib.Path(base.workdir))
    config = settings(base, tmp_path, encodings=("nope", "rope(base=5e5)"), steps=2)
    tuned = [runs.longer(config, owner, e, tmp_path) for e in ("nope", "rope", "rope,nope")]
    assert [(x.length, x.batch) for x in tuned] == [(L, 4), (TARGET, 2), (TARGET, 2)]
    assert [methods.drops_rope(x) for x in ("nope", "nope*2", "rope+temperature")] == [1, 1, 0]
    by_part = run(config)["nope"]["seeds"]["0"]
    losses = [by_part[part]["losses"]["sliding"][str(TARGET)] for part in ("plain", "tuned")]
    assert losses[0] != losses[1] and np.isfinite(losses).all()


def test_a_fine_tune_changes_the_model_is_stopped_and_goes_on_where_it_was(
    base, tmp_path, monkeypatch
):
    monkeypatch.setattr(extension_report.Page, "drawings", lambda _: [])  # drawn by another test
    given = {"encodings": ("rope(scaling=linear(factor={factor}))",), "steps": 2}
    given["optimizer"] = OptimizerConfig(warmup=1, learning_rate=1e-4)
    config = settings(base, tmp_path / "run", **given)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        at_step(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        program.main(config)
    assert end.value.code == 128 + signal.SIGTERM
    files = {p.relative_to(tmp_path / "run").as_posix() for p in tmp_path.rglob("*.json")}
    folder = f"runs/{run_names.folder(*config.encodings)}/seed0"
    assert f"{folder}/plain.json" in files and f"{folder}/tuned.json" not in files
    entries = run(config)
    rows = (tmp_path / "run" / folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2]  # not begun anew
    plain, tuned = (entries["linear"]["seeds"]["0"][part]["losses"] for part in ("plain", "tuned"))
    pair = [x["sliding"][str(TARGET)] for x in (plain, tuned)]
    assert pair[0] != pair[1]
    np.testing.assert_allclose(*pair, atol=0.01)  # it began where the run ended
    straight = run(dataclasses.replace(config, workdir=str(tmp_path / "straight")))
    assert straight["linear"]["seeds"]["0"]["tuned"]["losses"] == tuned
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*d.json")}
    assert run(config) == entries and before == {p: p.stat().st_mtime_ns for p in before}
    with pytest.raises(SystemExit) as end:
        program.main(dataclasses.replace(config, batch=4))
    assert end.value.code == 2


def test_a_method_that_fails_leaves_the_others_and_is_in_the_results(
    base, tmp_path, monkeypatch, capsys
):
    evaluate = runs.evaluate

    def fails(evaluator, *rest):
        if "linear" in evaluator.trainer.config.encoding:
            raise MemoryError("no room")
        return evaluate(evaluator, *rest)

    monkeypatch.setattr(runs, "evaluate", fails)
    monkeypatch.setattr(runs.Methods, "search", lambda *_: 1 / 0)
    (longrope,) = (e for e in ExtendConfig().encodings if "{searched}" in e)
    encodings = longrope, "rope", "rope(scaling=linear(factor={factor}))"
    config = settings(base, tmp_path, encodings=encodings, reference=longrope)
    with pytest.raises(SystemExit) as end:
        program.main(config)
    shown = capsys.readouterr()
    assert end.value.code == 1 and "linear seed 0: MemoryError: no room" in shown.err
    assert "LongRoPE's search: ZeroDivisionError" in shown.err
    searched, rope, linear = json.loads((tmp_path / "results.json").read_text())["encodings"]
    for entry in (searched, linear):
        assert entry["seeds"]["0"]["plain"]["status"] == "failed" and "failed" in shown.out
    assert rope["seeds"]["0"]["plain"]["status"] == "ok" and (tmp_path / "passkeys.png").exists()


def refused(config, capsys, *words):
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        program.main(config)
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    assert all(word in error for word in words), error
    assert not pathlib.Path(config.workdir).exists()


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"runs": ("nowhere",)}, "nowhere' holds no config.json; train a model there first"),
        ({"factor": 1.3}, "factor=1.3: times the run's length=104 must be whole"),
        ({"factor": 4.0}, "eval.lengths=(104, 208): add 416"),
        ({"encodings": ("alibi",)}, "'alibi' is not for a trained RoPE; pass nope or what rotates"),
        ({"encodings": ("rope+learned",)}, "'rope+learned' is not for a trained RoPE"),
        ({"encodings": ("rope,nope",)}, "'rope,nope' is not for a trained RoPE"),
        ({"encodings": ("rope", "rope(base=10000.0)")}, "rope(base=10000.0) are the same here"),
        ({"encodings": ("rope(scaling=linear(factor={fator}))",)}, "fator"),
        ({"eval": EvalConfig(lengths=(L, TARGET), windows=99, stride=L)}, "eval.windows=99"),
        ({"eval": EvalConfig(lengths=(L, TARGET, 8 * L), stride=L)}, "length=1665 (its longest"),
        ({"trials": 10**4}, "trials=10000"),
        ({"batch": 0}, "batch=0: must be"),
    ],
)
def test_what_cannot_be_is_refused_on_one_line(base, tmp_path, capsys, fields, words):
    config = dataclasses.replace(settings(base, tmp_path / "run"), **fields)
    if words.startswith("batch"):
        with pytest.raises(ValueError, match="batch=0: pass an integer"):
            config.check()
        return
    refused(config, capsys, words)


@pytest.mark.parametrize(
    "fields, words",
    [({"factor": 0.5}, "factor=0.5: pass a number in [1, 1024]"), ({"runs": ("a", "a")}, "once")],
)
def test_a_configuration_that_cannot_be_names_the_field(base, tmp_path, fields, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        settings(base, tmp_path, **fields)


def test_only_the_model_as_it_is_has_the_name_rope(base, tmp_path):
    given = ("rope(base=5e5)", "rope(scaling=linear(factor=2.0))", "rerope(window=52)")
    config = settings(base, tmp_path, encodings=given)
    assert methods.names(config) == dict(
        zip(("rope base 5e5", "linear", "rerope"), given, strict=True)
    )
    assert methods.names(settings(base, tmp_path, encodings=("rope",))) == {"rope": "rope"}


def test_rows_that_the_mesh_cannot_share_are_refused_before_anything_is_written(
    base, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sharding, "make_mesh", MAKE_MESH)  # for `shared_programs` has one device
    config = settings(base, tmp_path / "run", devices="all", batch=3)
    refused(config, capsys, "batch=3")
    assert not (tmp_path / "run").exists()


def test_runs_that_are_not_comparable_are_refused(base, tmp_path, capsys):
    def other(name, **fields):
        folder = tmp_path / name
        shutil.copytree(base.workdir, folder)
        saved = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**saved, **fields}))
        return str(folder)

    def no(runs, *words):
        refused(settings(base, tmp_path / "run", runs=runs), capsys, *words)

    no((base.workdir, other("batch", seed=1, batch=4)), "batch has batch=4", "their seed only")
    no((base.workdir, other("same")), "their seeds are [0, 0]")
    no((other("short", steps=3),), "is at step 2 of 3; finish it first")
    model = {**json.loads(json.dumps(dataclasses.asdict(base.model))), "encoding": "alibi"}
    no((other("alibi", model=model),), "model.encoding='alibi' is not plain RoPE")
    no((other("corpus", corpus="00"),), "corpus=", "was trained with '00'")
    no((other("shape", positions="shape"),), "positions='shape'")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text((pathlib.Path(base.workdir) / "config.json").read_text())
    no((str(empty),), "holds no checkpoint; train a model there first")


# The search


@pytest.mark.parametrize(
    "dim, base, length, ten_turns, one_turn",
    [(96, 1e4, 2048, 19, 31), (128, 5e5, 8192, 24, 35)],  # Phi3-mini, LLaMA3-8B
)
def test_candidates_have_the_critical_dimensions_of_the_paper_and_its_factors(
    dim, base, length, ten_turns, one_turn
):
    """The paper's values of eq. 7 are the last ones; it found 25 and 30."""
    theta = longrope_search.frequencies(make("rope", base=base), dim)
    for turns, want in ((10, ten_turns), (1, one_turn)):
        assert math.ceil(dim / 2 * math.log(length / turns / math.tau, base)) == want
    found = longrope_search.search(lambda x: float(x @ x), theta, 64.0, length, 200)
    pairs = {(d, power) for _, d, power, _ in found["tried"]}
    assert pairs == {(d, power) for d in range(ten_turns, one_turn + 1) for power in (0, 1)}
    assert len(found["tried"]) >= 200 and found["loss"] == min(found["tried"])[0]
    for _, critical, power, factors in found["tried"]:
        x = np.array(factors)
        assert (np.diff(x) >= 0).all() and 64 <= x[critical] and x[-1] <= 128
        larger = (x[critical] * base ** (2 * critical / dim)) ** (dim / 2 / critical)  # Alg. 2
        fast = (larger if power else base) ** (-2 * np.arange(critical) / dim)
        np.testing.assert_allclose((theta / x)[:critical], fast, rtol=1e-12)


def test_the_search_finds_a_critical_dimension_and_factors_better_than_those_it_began_with():
    theta = longrope_search.frequencies(make("rope"), 32)
    want = longrope_search.complete(0, np.linspace(4.2, 6, 11), 16)
    found = longrope_search.search(lambda x: np.abs(x - want).sum(), theta, 4.0, L, 300)
    losses = [loss for loss, *_ in found["tried"]]
    begun = longrope_search.first(theta, 4.0, L, np.random.default_rng(0))
    least = min(np.abs(longrope_search.complete(*x, 16) - want).sum() for x in begun)
    assert found["loss"] == min(losses) < 0.1 * least and found["critical"] == 5


def test_factors_whose_loss_is_not_finite_are_never_the_best():
    theta = longrope_search.frequencies(make("rope"), 32)
    loss = lambda x: np.nan if x[-1] > 5 else x[-1]  # noqa: E731
    found = [x for x, *_ in longrope_search.search(loss, theta, 4.0, L, 20)["tried"]]
    assert np.isnan(found[-1]) and found[0] == np.nanmin(found)


def test_factors_are_as_many_as_the_frequencies_and_one_is_left_where_all_turn():
    for spec, count in {"rope": 16, "rope(fraction=0.5)": 8, "rope(base=1.5)": 16}.items():
        theta = longrope_search.frequencies(parse(spec)[0], 32)
        begun = longrope_search.first(theta, 2.0, L, np.random.default_rng(0))
        assert {longrope_search.complete(*x, count).size for x in begun} == {count}
    assert [slow.size for _, slow in begun] == [1, 1]


def test_factors_as_parameters_are_the_scaling_that_has_them(base):
    """The loss of the search is that of the passkeys' digits alone."""
    config, linear = change(settings(base, "unused")), "rope(scaling=linear(factor=2.0))"
    owner = bases.read_base(pathlib.Path(base.workdir))
    (source,) = base_program.open_source(owner.config, owner.config.eval)
    plain, scaled = (
        base_program.prepare(runs.longer(config, owner, spec, owner.folder))
        for spec in ("rope", linear)
    )
    rows, in_answer = runs.needles(config, source, L)
    assert rows.shape == (config.depths * config.batch, TARGET + 1)
    params = trained_run.restore(owner.folder, plain).params
    free = Evaluator(longrope_search.with_factors(plain, 1.0), config.eval)
    got, _ = free.run((params, np.full(4, 2, np.float32)), rows)
    want, _ = Evaluator(scaled, config.eval).run(params, rows)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert in_answer.sum() == 5 * len(rows) and in_answer[:, -5:].all()
    worker = Worker("", plain.mesh, signals.Stop(), print)
    found = runs.Methods(config, [owner], {}, source, {}).search(worker)
    gain = LongRoPE((1.0,), (1.0,), L, factor=2.0).attention_factor
    least, *_, factors = found["tried"][0]
    free = Evaluator(longrope_search.with_factors(plain, gain), config.eval)
    losses, _ = free.run((params, np.asarray(factors, np.float32)), rows)
    np.testing.assert_allclose(least, losses[:, -5:].mean(), rtol=1e-5)


def test_a_fine_tune_at_positions_that_skip_ahead_has_rows_of_the_trained_length(
    base, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(extension_report.Page, "drawings", lambda _: [])
    yarn = "rope(scaling=yarn(factor={factor},original_length={length}))"
    given = {"encodings": ("rope", yarn), "steps": 2, "positions": f"pose(maximum={TARGET})"}
    config = settings(base, tmp_path, **given)
    owner = bases.read_base(pathlib.Path(base.workdir))
    tuned = runs.longer(config, owner, "rope", tmp_path).check()
    assert (tuned.length, tuned.batch, tuned.positions) == (L, 4, given["positions"])
    parts = run(config)["yarn"]["seeds"]["0"]
    plain, tuned = (parts[x]["losses"]["sliding"][str(TARGET)] for x in ("plain", "tuned"))
    assert plain != tuned and np.isfinite(tuned).all()
    for positions in ("shape(maximum=9)", f"pose(maximum={L})"):
        words = f"positions='{positions}': the target is {TARGET}; pass contiguous, or pose(maximum"
        other = settings(base, tmp_path / "no", **given | {"positions": positions})
        refused(other, capsys, words)


def test_a_workdir_keeps_the_checkpoints_of_runs_that_are_left_out_for_a_while(base, tmp_path):
    config = settings(base, tmp_path)
    owner = bases.read_base(pathlib.Path(base.workdir))
    now = program.described(config, [owner], {})
    assert program.check_resumable(config, now) == {}
    both = {**now, "checkpoints": {**now["checkpoints"], "7": "of seed 7"}}
    save_json(tmp_path / "config.json", both)
    assert program.check_resumable(config, now) == both["checkpoints"]
    with pytest.raises(ValueError, match="7='retrained'"):
        program.check_resumable(config, {**now, "checkpoints": {"7": "retrained"}})
