"""Every example runs by the command in its docstring, and does what it says there."""

import ast
import csv
import functools
import importlib
import math
import pathlib
import re
import runpy

import pytest

import pe_jax
from examples import own_checkpoint, own_encoding, own_kind, repeat
from experiments.programs import compare
from experiments.running.command import launch
from experiments.running.configs.compare import CompareConfig
from tests import command_lines

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - {"hf", "repeat"})  # what others share
GUESS = math.log(repeat.VOCAB)  # nats per token
# settings that are not the model's: its logits must then be others
OTHERS = {
    "hf_llama": {"encoding": pe_jax.make("rope")},
    "hf_bloom": {"encoding": pe_jax.make("nope")},
    "hf_t5": {"max_distance": 64},
    "hf_deberta": {"encoding": pe_jax.make("deberta", buckets=16, max_distance=128)},
}


def run(name: str, capsys) -> str:
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_its_docstring_has_its_command_and_it_is_short(name):
    text = (FOLDER / f"{name}.py").read_text()
    about = ast.get_docstring(ast.parse(text)) or ""
    assert re.search(rf"python -m examples\.{name}\b", about)
    assert len(text.splitlines()) < 80


def test_functions_borrows_three(capsys):
    assert run("functions", capsys).splitlines() == ["(2, 16, 8, 64)"] * 3


@pytest.mark.parametrize("name", ["plain_jax", "linen", "nnx"])
def test_a_model_borrows_three_schemes_trains_decodes_and_is_exported(name, capsys, monkeypatch):
    monkeypatch.setattr(repeat, "LAYERS", 1)  # enough to look three tokens back
    monkeypatch.setattr(repeat, "STEPS", 40)
    if name != "plain_jax":  # the others differ in the module that holds T5's table
        monkeypatch.setattr(repeat, "SCHEMES", ("t5",))
    lines = run(name, capsys).splitlines()
    assert [line.split()[0] for line in lines] == list(repeat.SCHEMES)
    for scheme, line in zip(repeat.SCHEMES, lines, strict=True):
        first, last, moved, decoded, exported = map(float, re.findall(r"\d+\.\d+|\de[-+]\d+", line))
        assert first > 0.9 * GUESS and last < first - 0.5, line
        assert (moved > 0.1) == (scheme == "t5"), line
        assert decoded < 1e-4 and exported < 1e-4, line


def test_an_encoding_of_ones_own_runs_by_every_engine():
    assert max(own_encoding.gaps(own_encoding.LogBias(), length=130)) < 1e-5


def test_a_kind_of_ones_own_runs_by_every_engine_with_gradients():
    differences = own_kind.differences(length=40)
    assert list(differences) == ["tiles", "ring", "decoding"]
    assert max(differences.values()) < 1e-4


def compared(monkeypatch, *argv: str) -> CompareConfig:
    """The config that `examples.compare_mine` starts a comparison with."""
    configs: list[CompareConfig] = []
    monkeypatch.setitem(pe_jax.ENCODINGS, "log_bias", own_encoding.LogBias)
    launched = functools.partial(launch.run, configs.append, "configs/compare.py", CompareConfig)
    assert command_lines.status(launched, *argv) is None
    (config,) = configs
    return config


def test_the_command_of_compare_mine_names_known_flags_and_encodings(monkeypatch, tmp_path):
    text = (FOLDER / "compare_mine.py").read_text()
    argv = re.findall(r"--\S+", ast.get_docstring(ast.parse(text)) or "")[:6]
    argv = [x.replace("DIR", str(tmp_path)) for x in argv]
    config = compared(monkeypatch, *argv)
    assert config.data == f"text:{tmp_path}"
    assert config.encodings == ("rope", "log_bias", "log_bias+rope")
    config.check()
    assert {type(layer) for layer in config.models()[1].pattern} == {own_encoding.LogBias}


@pytest.mark.slow
def test_my_encoding_is_compared_on_my_text(monkeypatch, tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.txt").write_text("to be or not to be, that is the question\n" * 500)
    sizes = ("--config=configs/smoke.py", "--config.model.layers=1", "--config.eval.windows=2")
    named = ("--encodings=rope", "--encodings=log_bias", "--config.reference=rope")
    where = (f"--config.data=text:{tmp_path}", f"--config.workdir={tmp_path / 'run'}")
    compare.main(compared(monkeypatch, *sizes, *named, *where, "--config.baseline=rope"))
    lines = (tmp_path / "run" / "verdicts.csv").read_text("utf-8").splitlines()
    assert {row["encoding"] for row in csv.DictReader(lines) if row["difference"]} == {"log_bias"}


def test_a_checkpoint_keeps_its_weights_and_gets_another_encoding(monkeypatch):
    monkeypatch.setattr(repeat, "STEPS", 60)
    monkeypatch.setattr(own_checkpoint, "METHODS", own_checkpoint.METHODS[::2])
    (rope, rope_longer), (rerope, rerope_longer) = own_checkpoint.losses().values()
    assert rope < GUESS - 0.5 and rope_longer > rope + 0.5
    assert rerope == pytest.approx(rope, abs=0.1) and rerope_longer < rope_longer - 0.5


@pytest.mark.oracles
@pytest.mark.parametrize("name", OTHERS)
def test_the_logits_are_those_of_hugging_face(oracles, name, capsys):
    assert re.search(r"differ by at most \d\.\de-0\d\n", run(name, capsys))


@pytest.mark.oracles
@pytest.mark.parametrize("name", OTHERS)
def test_another_encoding_gives_other_logits(oracles, name):
    assert importlib.import_module(f"examples.{name}").difference(**OTHERS[name]) > 1e-2
