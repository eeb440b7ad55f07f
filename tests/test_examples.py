"""Every example runs by the command in its docstring, and does what it says there."""

import ast
import importlib
import math
import pathlib
import re
import runpy

import pytest

import pe_jax

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - {"hf"})  # what hf_* share
GUESS = math.log(8)  # of the eight tokens of linen.py and nnx.py
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


def test_plain_jax_borrows_three(capsys):
    assert run("plain_jax", capsys).splitlines() == ["(2, 16, 8, 64)"] * 3


def test_linen_learns_with_an_encoding_and_not_without(capsys):
    first, last = map(float, re.findall(r"\d+\.\d+", run("linen", capsys)))
    assert first > 0.9 * GUESS and last < 0.1
    from examples import linen

    assert linen.train(pe_jax.make("nope"))[1] > 0.5 * GUESS


def test_nnx_learns_and_decodes_what_the_full_pass_gives(capsys):
    first, last, gap = map(float, re.findall(r"\d+\.\d+|\de[-+]\d+", run("nnx", capsys)))
    assert first > 0.9 * GUESS and last < 0.1 and gap < 1e-4


@pytest.mark.oracles
@pytest.mark.parametrize("name", OTHERS)
def test_the_logits_are_those_of_hugging_face(oracles, name, capsys):
    assert re.search(r"differ by at most \d\.\de-0\d\n", run(name, capsys))


@pytest.mark.oracles
@pytest.mark.parametrize("name", OTHERS)
def test_another_encoding_gives_other_logits(oracles, name):
    assert importlib.import_module(f"examples.{name}").difference(**OTHERS[name]) > 1e-2
