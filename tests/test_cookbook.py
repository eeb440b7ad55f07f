"""docs/cookbook.md is the generated page; what `pe_jax.hf.params` takes from a state dict.

Whether these are the models' own weights, tests/oracles/test_cookbook.py asks transformers.
"""

import re

import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings.windowed import without_window
from pe_jax.hf import weights
from tests.faults.encoding_calls import refused
from tools import cookbook
from tools.cookbook_rows import CHECKS, ROWS, TEXT, Row, page_rows, table_rows

ROOT = cookbook.PAGE.parents[1]
XLNET = {"model_type": "xlnet", "d_model": 8, "n_head": 2, "n_layer": 12}
T5 = {"model_type": "t5", "d_model": 8, "num_heads": 2, "num_layers": 1, "d_kv": 4}


def array(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="f").reshape(shape)


def test_the_page_is_the_generated_one():
    assert cookbook.PAGE.read_text(encoding="utf-8") == cookbook.page(), (
        "run python -m tools.cookbook"
    )


def test_tables_that_begin_later_say_at_which_row():
    rows = {line.partition("`")[2].partition("`")[0]: line for line in cookbook.page().splitlines()}
    assert "`shared['table']`: the rows from 2 on" in rows["opt"]
    assert "rows from" not in rows["gpt2"]


def test_the_readme_counts_its_models():
    read = sum(bool(row.model_type) for row in ROWS)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"the trap of {read} released models" in readme


def test_it_has_forty_families_and_each_live_test_that_it_names():
    assert len({row.model_type for row in ROWS}) >= 40
    assert len({row.name for row in ROWS}) == len(ROWS)
    for path, test in CHECKS.values():
        assert f"\ndef {test}(" in (ROOT / path).read_text()


def test_each_check_that_a_row_names_is_explained_once_and_has_a_link():
    explained = re.findall(r"^  - (\w+): ", TEXT, re.MULTILINE)
    used = {row.check for row in ROWS if row.check} | {"logits"}
    assert sorted(explained) == sorted(CHECKS) == sorted(used)


def test_a_new_row_needs_three_cells():
    head = "| model | config string | the trap | checked |\n| --- | --- | --- | --- |\n"
    (row,) = table_rows(head + "| **Any**<br>`llama` | its trap | [scores], [logits] |")
    assert row == Row("Any", "llama", "its trap", "scores", logits=True)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("| **Llama 2**<br>`llama` |", "**Llama 2**<br>`llama` |", ("Llama 2", "all 6 cells")),
        ("| **Llama 2**<br>`llama` | `rope` |", "| **Llama 2**<br>`llama` |", ("all 6 cells",)),
        ("**Llama 2**<br>`llama`", "**Llama 2**<br>llama", ("Llama 2", "**name**<br>`type`")),
        ("**Llama 2**<br>`llama`", "**Llama 2**<br>`lama`", ("Llama 2", "'lama'", "not read")),
        ("40 % of E, rounded down: 32 of 80 channels", "–", ("Phi-2", "trap is missing")),
        ("80 channels | [scores]", "80 channels | [score]", ("Phi-2", "'score'", "not linked")),
        ("80 channels | [scores]", "80 channels | scores", ("Phi-2", "should be 'config alone'")),
        ("80 channels | [scores]", "80 channels | [scores], [rows]", ("Phi-2", "be '[scores]'")),
        ("| **Phi-2**", "\n| **Phi-2**", ("'Phi-2'", "in no table")),
        ("**Phi-2**", "**Phi 2**", ("'Phi-2'", "in no table")),
        ("| model | config string | the", "| name | config string | the", ("'ModernBERT'",)),
    ],
)
def test_a_malformed_row_is_an_error_that_names_it(old, new, words):
    assert TEXT.count(old) == 1
    refused(lambda: page_rows(TEXT.replace(old, new)), *words)


def test_its_config_strings_are_parsed_to_what_the_config_says():
    for row in (row for row in ROWS if row.model_type):
        layers = hf.encodings(row.settings)
        for stack in dict.fromkeys(layer.stack for layer in layers):
            own = [layer for layer in layers if layer.stack == stack]
            parsed = pe_jax.parse(hf.pattern(own))
            for index, layer in enumerate(own):
                read = parsed[index % len(parsed)]
                assert without_window(read) == layer.encoding, row.name
                assert getattr(read, "window", None) == layer.window, row.name


def test_weights_have_a_row_that_a_live_test_compares():
    checks = ("weights", "rows", "sinusoids", "patches")
    compared = {row.model_type for row in ROWS if row.check in checks}
    elsewhere = ("openai-gpt", "biogpt", "albert", "data2vec-vision", "siglip_text_model")
    for kind in weights.WEIGHTS:
        first = weights.LIKE.get(kind, kind)
        family = {first, *(other for other, like in weights.LIKE.items() if like == first)}
        assert family & compared or kind in (*elsewhere, "siglip2_text_model"), kind


@pytest.mark.parametrize("kind", sorted(hf.FAMILIES))
def test_every_family_with_parameters_has_names_for_them(kind):
    more = {"embed_dim": 256, "depth": 1} if "vision" in kind else {}
    more |= {"partial_rotary_factor": 0.5} if kind == "moonshine" else {}  # 0.9 of 128 is odd
    for layer in hf.encodings(Row("any", kind, "", config=more, head_dim=128).settings):
        found = weights.listed(kind, layer)
        assert all(re.fullmatch(r"(shared|layer)\.\w+", w.to) for own in found for w in own)


def test_rotations_have_no_weights():
    llama = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
    assert hf.params(llama | {"num_hidden_layers": 1}, {}) == pe_jax.Params({}, {})


def test_layers_are_found_by_number_whatever_the_models_prefix():
    names = {"r": (8, 2, 4), "r_w_bias": (2, 4), "r_r_bias": (2, 4)}
    state = {
        f"transformer.layer.{n}.rel_attn.{name}": array(*shape) + n
        for n in range(12)
        for name, shape in names.items()
    }
    found = hf.params(XLNET, state, 10).layer
    assert found["u"][0, 0] == found["v"][0, 0] == 10 and found["w_r"].shape == (2, 8, 4)
    np.testing.assert_array_equal(found["w_r"], (array(8, 2, 4) + 10).transpose(1, 0, 2))


def test_swins_layers_are_those_of_its_stages_in_turn_and_none_may_be_missing():
    name = "encoder.layers.{}.blocks.{}.attention.self.relative_position_bias_table"
    blocks = [(stage, block) for stage, n in enumerate((2, 2, 6, 2)) for block in range(n)]
    state = {name.format(*at): array(169, 3) + i for i, at in enumerate(blocks)}
    for layer in (0, 3, 11):
        found = hf.params({"model_type": "swin"}, dict(reversed(state.items())), layer)
        np.testing.assert_array_equal(found.layer["table"], array(169, 3).T + layer)
    del state[name.format(1, 0)]
    refused(lambda: hf.params({"model_type": "swin"}, state, 11), "11 such arrays", "not 12")


def test_cross_attentions_table_of_old_files_is_not_read():
    name = "relative_attention_bias.weight"
    state = {
        f"encoder.block.0.layer.0.SelfAttention.{name}": array(32, 2),
        f"decoder.block.0.layer.0.SelfAttention.{name}": array(32, 2) + 1,
        f"decoder.block.0.layer.1.EncDecAttention.{name}": array(32, 2) + 2,
    }
    for layer in (0, 1):
        table = hf.params(T5, state, layer).shared["table"]
        np.testing.assert_array_equal(table, array(32, 2).T + layer)


def test_parts_of_a_sum_have_parameters_of_their_own():
    config = {"model_type": "mpnet", "hidden_size": 8, "num_attention_heads": 2}
    config |= {"num_hidden_layers": 1, "max_position_embeddings": 10}
    state = {
        "embeddings.position_embeddings.weight": array(10, 8),
        "encoder.relative_attention_bias.weight": array(32, 2),
    }
    table, buckets = hf.params(config, state).shared
    np.testing.assert_array_equal(table["table"], array(10, 8)[2:])
    np.testing.assert_array_equal(buckets["table"], array(32, 2).T)


def test_a_projection_with_its_bias_is_the_projection_of_one_column_more():
    weight, bias, table = array(8, 6), array(8) + 100, array(5, 6)
    want = (table @ weight.T + bias).reshape(5, 2, 4).swapaxes(0, 1)
    ours = np.einsum(
        "rd,hde->hre", weights.with_ones(table), weights.by_head(weight, bias, head_dim=4)
    )
    np.testing.assert_array_equal(ours, want)
    plain = weights.by_head(weight, head_dim=4)
    np.testing.assert_array_equal(plain[:, :-1], weight.reshape(2, 4, 6).swapaxes(1, 2))
    assert not np.any(plain[:, -1])


def test_what_is_missing_or_there_twice_is_an_error_that_names_it():
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    twice = {f"{model}.{name}": array(32, 2) for model in ("a", "b")}
    xlnet = {"layer.0.rel_attn.r_w_bias": array(2, 4)}
    for config, state, layer, words in (
        (T5, {}, 0, ("encoder.block.0", "has 0 such arrays")),
        (T5, twice, 0, ("encoder.block.0", "one model")),
        (T5, {name: array(32, 2)}, 2, ("layer=2", "has 2")),
        (XLNET, xlnet, 3, ("layer.3.rel_attn.r_w_bias", "has 0")),
    ):
        refused(lambda c=config, s=state, n=layer: hf.params(c, s, n), *words)
