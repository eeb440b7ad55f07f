"""What a comparison is to do, before anything trains: rates, names, folders, data."""

import runpy
from pathlib import Path

import pytest

from experiments.programs import compare
from experiments.running import rate_search
from experiments.running import training_loop as program
from pe_jax.training import corpus
from tests.experiments.tiny_comparison import settings
from tests.trainers import OPTIMIZER, change


@pytest.mark.parametrize("given", [{}, {"rates": (0.01, 0.1)}, {"encoding_rates": (1, 30)}])
def test_encoding_rates_are_a_choice_for_schemes_with_parameters_alone(tmp_path, given):
    config = change(settings(tmp_path), optimizer={"encoding_rate": 10.0}, **given)
    rates = given.get("rates", (OPTIMIZER.learning_rate,))
    plain = [(rate, 1.0) for rate in rates]
    own = [(rate, float(x)) for rate in rates for x in given.get("encoding_rates", (10,))]
    assert rate_search.grid(config, "nope") == plain and rate_search.grid(config, "t5+rope") == own
    tried = [pairs if len(pairs) > 1 else [] for pairs in (plain, own)]
    assert [compare.checks(config, spec) for spec in ("rope", "rope,kerple")] == tried


def test_a_corpus_that_is_not_the_published_one_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(corpus, "PACKAGES", corpus.PACKAGES[:2])
    config = change(settings(tmp_path), data="embedded")
    source = program.open_source(config)
    about = compare.manifest(config, source, compare.names(config))["corpus"]
    assert about["digest"] == source.corpus.digest and about["warning"] == source.corpus.warning
    assert "not that of the published numbers" in about["warning"]
    assert [x.levelname for x in caplog.records if about["warning"] in x.message] == ["WARNING"]


def test_variants_of_a_scheme_have_folders_of_their_own_whatever_else_is_compared(tmp_path):
    def folders(*specs):
        config = change(settings(tmp_path), encodings=specs, reference="")
        about = compare.manifest(config, program.open_source(config), compare.names(config))
        return {entry["spec"]: entry["folder"] for entry in about["encodings"]}

    several = folders("t5(num_buckets=8)", "t5", "t5+rope", "t5,rope")
    assert several["t5"] == "t5" and len({*several.values()}) == 4
    assert folders("t5(num_buckets=8)")["t5(num_buckets=8)"] == several["t5(num_buckets=8)"]


def test_the_first_encoding_is_the_baseline_and_the_reference_by_default(tmp_path):
    config = change(settings(tmp_path), encodings=("rope(base=5e5)", "rope"), reference="")
    about = compare.manifest(config, program.open_source(config), compare.names(config))
    assert about["baseline"] == about["reference"] == "rope base 5e5"
    assert about["config"]["reference"] == "rope(base=5e5)"


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("name", "size"),
    [("minutes", ()), ("novels", ()), ("field", ("25M",)), ("field", ("247M",))],
)
def test_the_extrapolation_family_is_sound_before_anything_compiles(name, size):
    config = runpy.run_path(str(CONFIGS / f"extrapolation_{name}.py"))["get_config"](*size)
    config.check()
    assert len(compare.names(config)) >= 5 and len(config.rates) >= 3
    assert config.eval.split == "test" and compare.check_evaluation(config).split == "validation"
    assert config.eval.lengths[0] == config.length and config.eval.lengths[-1] >= 8 * config.length
    assert config.eval.stride <= config.length // 2  # or both protocols are one at that length
