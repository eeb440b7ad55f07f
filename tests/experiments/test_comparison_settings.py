"""What a comparison is to do, before anything trains: rates, names, folders, data."""

import re
import runpy
from pathlib import Path

import pytest

from experiments.programs import compare
from experiments.running.files import manifest
from experiments.running.schedule import driver, rate_search
from experiments.running.training import training_loop as program
from pe_jax.training import corpus, tasks
from tests.experiments.tiny_comparison import settings
from tests.trainers import OPTIMIZER, change


@pytest.mark.parametrize("given", [{}, {"rates": (0.01, 0.1)}, {"encoding_rates": (1, 30)}])
def test_encoding_rates_are_a_choice_for_schemes_with_parameters_alone(tmp_path, given):
    config = change(settings(tmp_path), optimizer={"encoding_rate": 10.0}, **given)
    rates = given.get("rates", (OPTIMIZER.learning_rate,))
    plain = [(rate, 1.0) for rate in rates]
    own = [(rate, float(x)) for rate in rates for x in given.get("encoding_rates", (10,))]
    assert rate_search.grid(config, "nope") == plain and rate_search.grid(config, "t5+rope") == own
    assert [rate_search.grid(config, x) for x in ("rope", "rope,kerple")] == [plain, own]


def test_config_files_that_were_written_before_still_load(tmp_path):
    here = Path(__file__).parents[2] / "configs"
    for name in ("compare", "extend", "images", "tasks"):
        new = (here / f"{name}.py").read_text()
        old = re.sub(
            r"running\.configs\.(compare|extend|images|tasks) import",
            "running.sweep_configs import",
            new,
        )
        assert old != new
        (tmp_path / f"{name}.py").write_text(old)
        get = runpy.run_path(str(tmp_path / f"{name}.py"))["get_config"]
        assert get() == runpy.run_path(str(here / f"{name}.py"))["get_config"]()


def test_a_corpus_that_is_not_the_published_one_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(corpus, "PACKAGES", corpus.PACKAGES[:2])
    config = change(settings(tmp_path), data="embedded").resolved()
    (source,) = program.open_source(config, config.eval)
    about = compare.described(source)
    assert about["digest"] == source.corpus.digest and about["warning"] == source.corpus.warning
    assert "not that of the published numbers" in about["warning"]
    assert [x.levelname for x in caplog.records if about["warning"] in x.message] == ["WARNING"]


def described(config):
    grids = dict.fromkeys(config.encodings, ())
    return manifest.parsed(manifest.saved(config, {"name": "embedded"}, grids))


def test_variants_of_a_scheme_have_folders_of_their_own_whatever_else_is_compared(tmp_path):
    def folders(*specs):
        config = change(settings(tmp_path), encodings=specs, reference="").resolved()
        return {entry["spec"]: entry["folder"] for entry in described(config).encodings}

    several = folders("t5(num_buckets=8)", "t5", "t5+rope", "t5,rope")
    assert several["t5"] == "t5" and len({*several.values()}) == 4
    assert folders("t5(num_buckets=8)")["t5(num_buckets=8)"] == several["t5(num_buckets=8)"]


# 85
@pytest.mark.parametrize("lengths, length", [((12, 84), 12), ((84, 168), 84)])
def test_a_question_that_no_row_of_a_task_is_long_enough_for_is_refused(
    tmp_path, capsys, lengths, length
):
    sizes = {"lengths": lengths, "stride": 12}
    config = change(
        settings(tmp_path / "run"), data="synthetic:variables", length=length, eval=sizes
    )
    longest = tasks.TASKS["variables"].decoded(54) - 1
    assert longest < 84
    with pytest.raises(SystemExit):
        compare.main(config)
    error = capsys.readouterr().err
    assert f"rows of synthetic:variables have at most {longest} tokens; pass no more" in error
    assert error.count("\n") == 1 and not (tmp_path / "run").exists()


# 85
@pytest.mark.parametrize("reference, lengths", [("learned", [24]), ("nope", [])])
def test_a_reference_that_has_no_loss_at_a_declared_length_is_said(
    tmp_path, caplog, monkeypatch, reference, lengths
):
    def reached(*_):
        raise InterruptedError

    monkeypatch.setattr(driver, "Lock", reached)
    with pytest.raises(SystemExit):
        compare.main(change(settings(tmp_path), reference=reference))
    said = [line for line in caplog.messages if line.startswith("reference=")]
    assert said == [
        f"reference='{reference}' is not defined at {n} tokens: no verdict there; choose another"
        for n in lengths
    ]


def test_the_first_encoding_is_the_baseline_and_the_reference_by_default(tmp_path):
    config = change(settings(tmp_path), encodings=("rope(base=5e5)", "rope"), reference="")
    config = config.resolved()
    about = described(config)
    assert about.baseline == about.reference == "rope base 5e5"
    assert about.config["reference"] == "rope(base=5e5)"


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("extrapolation_minutes", ()),
        ("extrapolation_novels", ()),
        ("extrapolation_field", ("25M",)),
        ("extrapolation_field", ("247M",)),
        ("hybrids", ()),
    ],
)
def test_the_extrapolation_family_is_sound_before_anything_compiles(name, size):
    config = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](*size)
    config.check()
    assert len(config.encodings) >= 5 and len(config.rates) >= 3
    assert config.eval.split == "test" and compare.check_evaluation(config).split == "validation"
    assert config.eval.lengths[0] == config.length and config.eval.lengths[-1] >= 8 * config.length
    assert config.eval.stride <= config.length // 2  # or both protocols are one at that length
