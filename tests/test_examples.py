"""Every example runs by the command in its docstring, and does what it says there."""

import ast
import importlib
import math
import pathlib
import re
import runpy

import pytest

import pe_jax
from examples import repeat

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
    lines = run(name, capsys).splitlines()
    assert [line.split()[0] for line in lines] == list(repeat.SCHEMES)
    for scheme, line in zip(repeat.SCHEMES, lines, strict=True):
        first, last, moved, decoded, exported = map(float, re.findall(r"\d+\.\d+|\de[-+]\d+", line))
        assert first > 0.9 * GUESS and last < first - 0.5, line
        assert (moved > 0.1) == (scheme == "t5"), line
        assert decoded < 1e-4 and exported < 1e-4, line


@pytest.mark.oracles
@pytest.mark.parametrize("name", OTHERS)
def test_the_logits_are_those_of_hugging_face(oracles, name, capsys):
    assert re.search(r"differ by at most \d\.\de-0\d\n", run(name, capsys))


@pytest.mark.oracles
@pytest.mark.parametrize("name", OTHERS)
def test_another_encoding_gives_other_logits(oracles, name):
    assert importlib.import_module(f"examples.{name}").difference(**OTHERS[name]) > 1e-2
