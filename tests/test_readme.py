"""README and docs/encodings.md say what the code says."""

import re
import subprocess
import sys

import numpy as np
import pytest

import pe_jax
from experiments.reporting.comparison import scheme_pictures
from experiments.running.command.help_text import signature
from pe_jax import positions
from pe_jax.encodings import alibi, rope
from tests.oracles.cases import CASES, GOLDEN
from tools import encoding_docs
from tools import scheme_facts as facts

ROOT = facts.ROOT
# By one worker: which engines run a scheme is found once a process, and takes most of the time.
pytestmark = pytest.mark.xdist_group("generated pages")


def test_the_readme_names_each_scheme_once_and_fits_a_screen():
    text = (ROOT / "README.md").read_text("utf-8")
    families = re.findall(r"\[(\w+)\]\(docs/encodings\.md#(\w+)\)", text)
    assert sorted(families) == sorted((name, name) for name in pe_jax.ENCODINGS)
    assert f"JAX: {len(pe_jax.ENCODINGS)} schemes as pure functions" in text
    assert len(text.splitlines()) <= 120


def test_the_page_of_encodings_is_the_generated_one():
    text = encoding_docs.PAGE.read_text(encoding="utf-8")
    assert encoding_docs.page() == text, "run python -m tools.encoding_docs"


def test_the_table_of_kernels_is_what_attention_chooses():
    text = encoding_docs.ENGINES.read_text(encoding="utf-8")
    assert encoding_docs.engines_page() == text, "run python -m tools.encoding_docs"
    assert "| fused | fused | splash | tpu | alibi |" in text


def test_a_scheme_that_is_new_is_missed(monkeypatch):
    monkeypatch.setitem(pe_jax.ENCODINGS, "rope_again", rope.RoPE)
    page = encoding_docs.page()
    assert "| [`rope_again`](#rope_again) |" in page and "\n## rope_again\n" in page


def test_a_scheme_without_a_paper_has_a_dash_for_its_source(monkeypatch):
    class Homemade(pe_jax.Encoding):
        """Adds nothing, and nobody wrote about it."""

    monkeypatch.setitem(pe_jax.ENCODINGS, "homemade", Homemade)
    assert encoding_docs.row("homemade", Homemade)[1] == "—"
    assert "arxiv.org" in encoding_docs.row("rope", rope.RoPE)[1]


def test_each_scheme_has_a_picture_and_none_is_left_over():
    files = {path.stem: path.stat().st_size for path in encoding_docs.FIGURES.iterdir()}
    assert files.keys() == pe_jax.ENCODINGS.keys(), "run python -m tools.encoding_docs"
    assert max(files.values()) < 25_000
    links = re.findall(r"!\[[^]]*\]\(([^)]+)\)", encoding_docs.PAGE.read_text(encoding="utf-8"))
    assert len(links) == len(files)
    assert all((encoding_docs.PAGE.parent / link).is_file() for link in links)


def test_the_page_shows_an_equation_and_tests_of_each_scheme():
    for name, kind in pe_jax.ENCODINGS.items():
        section = encoding_docs.section(name, kind)
        assert "```text" in section, f"{name}: indent the equation"
        assert "**Tested against**" in section, name


@pytest.mark.parametrize("name", pe_jax.ENCODINGS)
def test_imports_and_config_strings_of_the_page_are_those_of_the_scheme(name):
    kind = pe_jax.ENCODINGS[name]
    line, _, used = encoding_docs.borrowed(kind).partition("  # ")
    space: dict = {}
    exec(line, space)
    assert [eval(thing, space) for thing in used.split(", ")][-1] is kind
    assert pe_jax.parse(signature(name, kind)) == (kind(),)


def test_engines_are_those_that_run_the_scheme():
    everywhere = ("dense", "tiled", "fused", "tpu", "decode")
    names = ("alibi", "shaw", "fire", "rope_2d", "cope", "dape", "path")
    found = {name: facts.engines(name) for name in names}
    assert found == {
        "alibi": everywhere,
        "shaw": everywhere,
        "fire": everywhere,
        "rope_2d": everywhere,
        "cope": ("dense", "tiled", "fused", "decode"),
        "dape": ("dense", "tiled", "decode"),
        "path": ("dense", "tiled", "fused", "decode"),
    }


def test_oracles_are_those_of_the_cases():
    compared = {facts.case_of(case) for _, case, _ in GOLDEN}
    assert compared == {name for name, found in facts.oracles().items() if found}
    assert facts.case_of("rope_2d_pixtral") == "rope_2d" and facts.case_of("rope_yarn") == "rope"
    assert all(facts.case_of(case) for case in CASES)
    assert facts.oracles()["t5"] == [("t5", "T5Attention")]
    assert ("llama", "LlamaRotaryEmbedding") in facts.oracles()["rope"]


def test_a_picture_shows_what_attention_adds():
    x, places = scheme_pictures.tokens(9), positions.contiguous(9)
    distance = np.subtract.outer(np.arange(9), np.arange(9))
    seen = distance >= 0
    (found,) = scheme_pictures.added(pe_jax.make("alibi"), x, places)
    want = np.where(seen, alibi.bias(distance, scheme_pictures.DIMS.heads), np.nan)
    np.testing.assert_allclose(found, want, atol=1e-5)
    assert not np.abs(scheme_pictures.added(pe_jax.make("nope"), x, places)[..., seen]).any()
    heads = np.asarray(x[0]).reshape(9, 4, 64)
    turned = np.asarray(rope.rotate(heads, places, rope.frequencies(64)))
    scores = [np.einsum("the,she->hts", y, y) / 8 for y in (turned, heads)]
    (found,) = scheme_pictures.added(pe_jax.make("rope"), x, places)
    np.testing.assert_allclose(found[:, seen], (scores[0] - scores[1])[:, seen], atol=1e-4)


def test_a_picture_drawn_again_has_the_same_bytes(tmp_path):
    for folder in ("one", "two"):
        scheme_pictures.draw("alibi", tmp_path / folder)
    one, two = ((tmp_path / folder / "alibi.png").read_bytes() for folder in ("one", "two"))
    assert one == two


def test_the_code_of_pages_runs_as_written():
    """Examples with Flax; tests/test_packaging.py has the others, with only JAX and NumPy."""
    pages = [(ROOT / page).read_text("utf-8") for page in ("README.md", "docs/borrow.md")]
    code = [x for page in pages for x in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    code = [block for block in code if "flax" in block]
    assert code
    run_each = "import sys\nfor code in sys.argv[1:]: exec(code, {'__name__': '__main__'})"
    subprocess.run([sys.executable, "-c", run_each, *code], check=True, cwd=ROOT)


@pytest.mark.parametrize("page", ["README.md", "docs/borrow.md"])
def test_every_make_target_that_pages_name_exists(page):
    text, makefile = (ROOT / page).read_text("utf-8"), (ROOT / "Makefile").read_text()
    for target in np.unique(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
