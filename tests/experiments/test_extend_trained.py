"""Models of other encodings beside extended ones: the same fine-tune and questions, by seed."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.programs import compare, extend
from experiments.reporting import extension_report
from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.extend import ExtendConfig
from experiments.running.extension import bases, runs
from experiments.running.files import manifest, table
from experiments.running.training import trained_run, training_loop
from experiments.running.training.training_loop import open_source
from pe_jax.training import sharding
from pe_jax.training.config import Config
from pe_jax.training.evaluate import Evaluator
from tests.experiments.extensions import TARGET, L, base_config, data, settings
from tests.trainers import shared_programs  # noqa: F401

SEEDS = ("5", "6")
REROPE = "rerope(window={window})"
OTHERS = {"alibi": "alibi", "t5": "t5", "learned": f"learned(length={L})"}
pytestmark = pytest.mark.xdist_group("extend")


def extension(workdir, trained, **fields) -> ExtendConfig:
    given = {"encodings": ("rope", REROPE), "reference": "rerope", "primary": "passkeys"}
    return settings(Config(), workdir, **{**given, **fields}, **trained)


def results(config: ExtendConfig) -> dict:
    extend.main(config)
    return json.loads(Path(config.workdir, "results.json").read_text())


@pytest.fixture(scope="module")
def comparison(tmp_path_factory, shared_programs) -> Path:  # noqa: F811
    """The workdir of a finished comparison, whose RoPE is not the first."""
    folder = tmp_path_factory.mktemp("comparison")
    fields = {f.name: getattr(base_config(folder), f.name) for f in dataclasses.fields(Config)}
    more = {"encodings": ("alibi", "rope", "t5", "learned(length={length})"), "seeds": 2, "seed": 5}
    fields |= {"workdir": str(folder / "compared"), "data": data(folder), "steps": 20, "workers": 1}
    config = CompareConfig(**fields | more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare.model_speed, "measure", lambda *_: {})
        patch.setattr(compare, "show", lambda _: None)
        compare.main(config)
    return Path(config.workdir)


@pytest.fixture(scope="module")
def found(comparison, tmp_path_factory) -> tuple[Path, dict]:
    """The workdir of an extension, and its results."""
    folder = tmp_path_factory.mktemp("extended")
    return folder, results(extension(folder, {"trained": str(comparison)}))


def runs_of(comparison: Path) -> dict[str, dict[str, Path]]:
    """Encoding → seed → the folder of the trained run."""
    runs, entries = comparison / "runs", manifest.read(comparison).encodings
    folders = {entry["name"]: runs / entry["folder"] for entry in entries}
    return {name: {n: path / f"seed{n}" for n in SEEDS} for name, path in folders.items()}


def test_other_encodings_have_the_evaluations_of_their_runs_of_each_seed(comparison, found):
    folder, given = found
    entries = {entry["name"]: entry for entry in given["encodings"]}
    assert [*entries] == ["rope", "rerope", *OTHERS]
    assert {name: entries[name]["encoding"] for name in OTHERS} == OTHERS
    losses = []
    for name, by_seed in runs_of(comparison).items():
        assert [*entries[name]["seeds"]] == [*SEEDS]
        for seed, path in by_seed.items():
            own = json.loads((path / "evaluation.json").read_text())["losses"]
            assert entries[name]["seeds"][seed]["plain"]["losses"] == own
            losses.append(own["sliding"][str(L)])
    assert len({*map(tuple, losses)}) == len(losses)
    for test in ("passkeys: exact", "sliding"):
        rows = table.read(folder / "results.csv")
        assert {row.scheme for row in rows if row.test == test} == {*entries}
    assert given["verdicts"]["plain"].keys() == entries.keys()
    assert given["verdicts"]["plain"]["rerope"] == "the reference"
    assert given["verdicts"]["plain"]["learned"] == "no number in both"
    (learned,) = (row for row in given["differences"]["plain"] if row["of"] == "learned")
    assert learned["without"] == {str(TARGET): "not defined"}


def test_all_answer_the_same_questions_with_the_models_of_their_own_seeds(comparison, found):
    entries = {entry["name"]: entry["seeds"] for entry in found[1]["encodings"]}
    config, _ = trained_run.read(runs_of(comparison)["rope"]["5"])
    some_right = []
    asking = extension(found[0], {"trained": str(comparison)})
    asked = extend.passkey_questions(asking, *open_source(config, config.eval))
    for name, by_seed in runs_of(comparison).items():
        for seed, path in by_seed.items():
            model, _ = trained_run.load(path)
            for length, questions in asked.items():
                saved = entries[name][seed]["plain"]["passkeys"][str(length)]
                if name == "learned" and length > L:
                    assert saved is None
                    continue
                rows, answers = questions  # pyright: ignore[reportGeneralTypeIssues]
                right = np.asarray(model(jnp.asarray(rows[:, :-1]))).argmax(-1) == rows[:, 1:]
                by_depth = np.array([r[a] for r, a in zip(right, answers, strict=True)])
                by_depth = by_depth.reshape(asking.depths, -1)
                assert saved["tokens"] == by_depth.mean(1).tolist()
                some_right.append(any(saved["tokens"]))
    assert np.mean(some_right) > 0.5  # else all questions would do


def test_other_encodings_go_on_with_the_same_fine_tune(comparison, tmp_path):
    trained = altered(comparison, tmp_path / "other", lambda _: None)
    drop(tmp_path / "other", "t5", "learned")
    config = extension(tmp_path / "run", trained, encodings=("rope",), reference="", steps=2)
    entries = {entry["name"]: entry["seeds"]["5"] for entry in results(config)["encodings"]}
    for name in ("rope", "alibi"):
        path = runs_of(Path(trained["trained"]))[name]["5"]
        run, _ = trained_run.read(path)
        more = {"length": TARGET, "batch": 2, "steps": 2, "optimizer": config.optimizer}
        run = dataclasses.replace(run, seed=5 + runs.OTHER_DATA, eval=config.eval, **more)
        trainer = training_loop.prepare(run, sharding.make_mesh(run.mesh, jax.devices()[:1]))
        (source,) = open_source(run, run.eval)
        params = trained_run.restore(path, trainer).params
        state = trainer.init(run.seed)._replace(params=params)
        rows = training_loop.batches(run, source, trainer.mesh)
        for batch in itertools.islice(rows, 2):
            state, _ = trainer.step(state, trainer.put(batch), np.int32(run.seed))
        expected = training_loop.evaluate(Evaluator(trainer, run.eval), source, state)["losses"]
        assert entries[name]["tuned"]["losses"] == expected != entries[name]["plain"]["losses"]


def test_what_is_finished_is_not_repeated_and_what_was_retrained_is_refused(
    comparison, found, tmp_path, capsys
):
    folder, given = found
    config = extension(folder, {"trained": str(comparison)})
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("plain.json")}
    assert len(before) == 2 * (2 + len(OTHERS))
    assert results(config)["differences"] == given["differences"]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    other = tmp_path / "other"
    shutil.copytree(comparison, other)
    five, six = runs_of(other)["t5"].values()
    shutil.rmtree(five / "checkpoints")
    shutil.copytree(six / "checkpoints", five / "checkpoints")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        extend.main(extension(folder, {"trained": str(other)}))
    assert "error: t5 seed 5=" in capsys.readouterr().err


def test_a_run_that_diverged_counts_in_the_family(comparison, found, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(comparison, other)
    path = runs_of(other)["t5"]["6"]
    shutil.rmtree(path / "checkpoints")
    (path / "evaluation.json").write_text('{"status": "diverged", "reason": "at step 3"}')
    given = results(extension(tmp_path / "run", {"trained": str(other)}))
    seeds = {entry["name"]: entry["seeds"] for entry in given["encodings"]}
    assert seeds["t5"]["6"]["plain"]["reason"] == "at step 3"
    assert (
        seeds["t5"]["5"]["plain"]["passkeys"]
        and given["verdicts"]["plain"]["t5"][:9] == "no number"
    )
    judged = {row["of"]: row for row in given["differences"]["plain"]}
    assert judged["t5"]["without"] == {str(TARGET): "diverged in seed 6"}
    unchanged = {row["of"]: row for row in found[1]["differences"]["plain"]}
    assert judged["alibi"] == unchanged["alibi"]  # of a family as large


def page(rates: Mapping[str, Mapping[int, list[float] | None]], primary="passkeys"):
    """The results of methods and encodings: name → seed → rate by depth; None: diverged."""

    def run(name: str, exact: list[float] | None) -> dict:
        losses = {"sliding": {str(TARGET): [len(name), *(exact or ())]}}
        keys = {str(TARGET): {"exact": exact, "tokens": exact}}
        good = {"status": "ok", "reason": "", "losses": losses, "passkeys": keys}
        return good if exact else {"status": "diverged", "reason": ""}

    entries = [
        {"name": n, "encoding": n, "seeds": {str(s): {"plain": run(n, x)} for s, x in by.items()}}
        for n, by in rates.items()
    ]
    config = extension("unused", {"trained": "t"}, primary=primary).resolved()
    return extension_report.Page(
        config, L, TARGET, {"plain": extension_report.schemes(entries, "plain")}
    )


def test_passkeys_are_compared_with_the_reference_of_the_same_seed():
    reference = {5: [0.1, 0.3], 6: [0.5, 0.5], 7: [0.9, 0.7]}
    better = {7: [1.0, 0.9], 5: [0.3, 0.4], 6: [0.6, 0.7]}  # by 0.15, if paired by seed
    better[5][1] += 0.02
    broken = {5: [0.5, 0.5], 6: [0.5, 0.5], 7: None}
    given = page({"rope": broken, "rerope": reference, "alibi": better})
    rows = {row["of"]: row for row in given.passkey_differences("plain")}
    differences = 100 * np.array([0.16, 0.15, 0.15])
    half = stats.t.isf(0.05 / 2 / 2, 2) * differences.std(ddof=1) / np.sqrt(3)  # of two
    got = [rows["alibi"][x] for x in ("points", "low", "high")]
    np.testing.assert_allclose(got, differences.mean() + half * np.array([0, -1, 1]))
    assert rows["alibi"]["verdict"].startswith("more passkeys right (p ")
    assert rows["rope"]["verdict"] == "no number in both" and "points" not in rows["rope"]
    names = [(row.name, row.words) for row in given.judged("plain")]
    assert names[0] == ("rerope", "the reference") and len(names) == 3


def test_losses_decide_unless_passkeys_are_declared():
    rates = {"rope": {5: [0.5, 0.5]}, "rerope": {5: [0.2, 0.4]}}
    by_loss, by_keys = (page(rates, x).judged("plain") for x in ("loss", "passkeys"))
    assert [(row.name, row.difference) for row in by_loss] == [
        ("rope", "\N{MINUS SIGN}0.533"),
        ("rerope", ""),
    ]
    assert [(row.name, row.difference) for row in by_keys] == [("rerope", ""), ("rope", "+20.0")]


# What is refused


def altered(comparison: Path, folder: Path, alter) -> dict[str, str]:
    """A copy of the comparison after `alter(runs)`, as the field."""
    shutil.copytree(comparison, folder)
    alter(runs_of(folder))
    return {"trained": str(folder)}


def drop(comparison: Path, *names: str) -> Path:
    """Takes encodings out of the comparison's manifest, whose path it returns."""
    path, entries = comparison / manifest.NAME, manifest.read(comparison).encodings
    rest = [entry for entry in entries if entry["name"] not in names]
    path.write_text(json.dumps({**json.loads(path.read_text()), "encodings": rest}))
    return path


def saves(name: str, seed: str, /, **fields):
    """Changes fields of a run's config.json."""

    def change(runs: dict[str, dict[str, Path]]) -> None:
        path = runs[name][seed] / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def removes(name: str, seed: str, part: str):
    return lambda runs: shutil.rmtree(runs[name][seed] / part)


@pytest.mark.parametrize(
    "alter, words",
    [
        (saves("t5", "5", steps=30), "t5/seed5': is at step 20 of 30; finish it first"),
        (removes("alibi", "6", "checkpoints"), "alibi/seed6' holds no checkpoint"),
        (removes("alibi", "6", ""), "alibi/seed6' holds no config.json"),
        (saves("t5", "6", corpus="00"), "t5/seed6 has corpus='00'"),
        (saves("t5", "6", length=96), "has length=96"),
        (saves("t5", "6", seed=7), "t5 has seeds [5, 7], rope [5, 6]; train them all"),
        (saves("t5", "6", positions="shape"), "positions='shape'; use a run on text"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(comparison, tmp_path, capsys, alter, words):
    refused(
        extension(tmp_path / "run", altered(comparison, tmp_path / "other", alter)), capsys, words
    )


def refused(config: ExtendConfig, capsys, words: str) -> None:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        extend.main(config)
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1 and words in error, error
    assert not Path(config.workdir).exists()


def test_a_base_that_diverged_and_a_comparison_without_rope_are_refused(
    comparison, tmp_path, capsys
):
    def diverges(runs) -> None:
        text = '{"status": "diverged", "reason": "at step 3"}'
        (runs["rope"]["5"] / "evaluation.json").write_text(text)

    trained = altered(comparison, tmp_path / "other", diverges)
    refused(extension(tmp_path / "run", trained), capsys, "rope/seed5': diverged (at step 3)")
    path = drop(tmp_path / "other", "rope")
    need = f"compares alibi, t5, learned(length={L}); the methods need runs of rope"
    refused(extension(tmp_path / "run", trained), capsys, need)
    path.unlink()
    refused(extension(tmp_path / "run", trained), capsys, "pass a workdir of experiments.compare")


def test_an_encoding_is_a_method_or_trained(comparison, tmp_path, capsys, monkeypatch):
    def as_nope(runs) -> None:
        saved = json.loads((runs["t5"]["5"] / "config.json").read_text())
        for seed in SEEDS:
            saves("t5", seed, model={**saved["model"], "encoding": "nope"})(runs)

    trained = altered(comparison, tmp_path / "other", as_nope)
    config = extension(tmp_path / "run", trained, encodings=("rope", REROPE, "nope"))
    refused(config, capsys, "t5 was trained in ")
    config = extension(tmp_path / "run", {"trained": str(comparison)}, steps=2)
    refused(config, capsys, f"'learned(length={L})' is defined for {L} positions, contiguous has")


def test_rates_may_differ(comparison, tmp_path):
    def other_rates(runs) -> None:
        saved = json.loads((runs["t5"]["5"] / "config.json").read_text())
        rates = {"learning_rate": 0.5, "encoding_rate": 30.0}
        saves("t5", "5", optimizer={**saved["optimizer"], **rates})(runs)

    trained = altered(comparison, tmp_path / "other", other_rates)
    bases.check_comparable(*bases.read_runs(extension(tmp_path / "run", trained)))
