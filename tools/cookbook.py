"""docs/cookbook.md: released models, their config strings, where their weights go, and traps.

`python -m tools.cookbook` computes three columns of the page's rows from what `pe_jax.hf` reads,
and its last two sections. The rest is written there by hand; a new row needs three cells, as in
`| **Llama 2**<br>`llama` | the trap | [scores] |`, and its config, if it is not the default, in
`tools.cookbook_rows`.
"""

import collections
import dataclasses
import inspect
import re
from collections.abc import Sequence

from pe_jax.hf import FAMILIES, Extras, LayerEncoding, encodings, pattern, weights
from pe_jax.hf.families import NEAREST
from pe_jax.hf.parents import listed
from tools.cookbook_rows import PAGE, TABLE, TEXT, Row, table_rows

HEAD = ("model", "config string", "besides", "position weights", "the trap", "checked")
DIFFERENCES = {  # from transformers, on purpose, by their tests in tests/hf/test_differences.py
    "test_rotary_dim_is_a_part_of_the_head": "`rotary_dim` of MiniMax: that part of a head rotates;"
    " transformers rotates all of it",
    "test_a_partial_factor_is_a_part_of_the_head": "`partial_rotary_factor` of Llama: the same",
    "test_alibis_largest_slope_is_read": "`alibi_bias_max` of MPT: read; transformers takes 8",
    "test_relative_keys_of_bert_are_shaws": "`position_embedding_type='relative_key'` of BERT and"
    " its like: Shaw's keys, which transformers 5 has no longer",
    "test_truncate_is_read_by_type": "`truncate` of a YaRN whose settings are by layer type: read,"
    " with a warning",
    "test_old_scaling_of_gemma_3_acts": "a flat `rope_scaling` of Gemma 3 with `type` for"
    " `rope_type`: it acts, on the full layers; transformers 5 rotates without",
    "test_a_flat_base_of_olmo_3_is_of_both_types": "a flat `rope_theta` of Olmo 3: that of both"
    " layer types; transformers 5 takes its default for those that slide",
    "test_an_unread_window_is_refused_unless_it_hides_nothing": "a `sliding_window` that a family"
    " leaves unread: an error, unless it hides nothing (switched off, as wide as the model is long,"
    " or of a draft head)",
    "test_the_first_llava_has_the_layers_that_it_says": "sizes and RoPE of the text next to the"
    " config's own keys, as the first LLaVA has them: read; transformers takes its defaults",
    "test_a_long_text_of_phi_moe_has_the_long_factors": "a text of Phi-3.5-MoE beyond 4,096 tokens:"
    " its `long_factor` and `long_mscale`; transformers 5.24 takes `short_factor` with the latter",
}


def spec(layers: Sequence[LayerEncoding]) -> str:
    """Config strings of the stacks, those of the encoder first."""
    stacks = dict.fromkeys(layer.stack for layer in layers)
    patterns = [pattern([x for x in layers if x.stack == stack]) for stack in stacks]
    return " / ".join(dict.fromkeys(patterns))


def besides(layers: Sequence[LayerEncoding]) -> str:
    """What else the scores need, and in how many layers."""
    counts: collections.Counter[str] = collections.Counter()
    for layer in layers:
        numbers = {"scale": layer.scale, "logit_cap": layer.logit_cap}
        numbers |= {"prefix": layer.prefix or None}
        numbers |= {"first_row": layer.first_row or None}
        counts.update(f"{name} {x:.6g}" for name, x in numbers.items() if x is not None)
        counts.update(["rotary_last"] * layer.rotary_last)
        for name, x in dataclasses.asdict(layer.extras).items():
            if x != getattr(Extras, name):
                counts[name if x is True else f"{name} {x}"] += 1
    total = len(layers)
    counted = (f"{x} ({n} of {total} layers)" if n < total else x for x, n in counts.items())
    return ", ".join(counted) or "–"


def mapped(model_type: str, layers: Sequence[LayerEncoding]) -> str:
    """Names in a state dict, the entries of `Params` that they become, and how."""
    stacks: dict[tuple[weights.Weight, str, str], list[str]] = {}
    for layer in layers:
        parts = weights.listed(model_type, layer)
        numbered = [(f"[{i}]" * (len(parts) > 1), w) for i, part in enumerate(parts) for w in part]
        for part, weight in numbered:  # parameters of sums are tuples
            words = (inspect.getdoc(weight.how) or "").partition("\n")[0].rstrip(".")
            words = words.replace("that of position 0", str(layer.first_row))
            plain = weight.how is weights.same or words == "The rows from 0 on"
            key = weight, part, "" if plain else f": {words[0].lower()}{words[1:]}"
            in_stacks = stacks.setdefault(key, [])
            in_stacks += [layer.stack] * (layer.stack not in in_stacks)
    lines = []
    for (weight, part, words), in_stacks in stacks.items():
        stack = in_stacks[0] if len(in_stacks) == 1 else f"{{{','.join(in_stacks)}}}"
        names = ", ".join(f"`{name.format(stack=stack, layer='*')}`" for name in weight.names)
        tree, _, entry = weight.to.partition(".")
        lines.append(f"{names} → `{tree}{part}['{entry}']`{words}")
    return "<br>".join(lines) or "–"


def _shorter(text: str) -> str:
    """Long lists of numbers without their numbers."""
    return re.sub(r"\((?:[\d.]+, ){8,}[\d.]+\)", "(…)", text)


def cells(row: Row) -> list[str]:
    """One row of a table."""
    if not row.model_type:
        return [f"**{row.name}**", "not read", "–", "–", row.trap, row.checked]
    layers = encodings(row.settings)
    first = [f"**{row.name}**<br>`{row.model_type}`", f"`{_shorter(spec(layers))}`"]
    return [*first, besides(layers), mapped(row.model_type, layers), row.trap, row.checked]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, without columns that are empty."""
    lines = [list(HEAD), *map(cells, rows)]
    columns = [i for i, _ in enumerate(HEAD) if any(line[i] != "–" for line in lines[1:])]
    lines.insert(1, ["---"] * len(HEAD))
    return "\n".join(f"| {' | '.join(line[i] for i in columns)} |" for line in lines)


def groups() -> dict[str, list[str]]:
    """Model types that are read, by the class that reads them."""
    by_doc: dict[str, list[str]] = {}
    for model_type, family in FAMILIES.items():
        doc = (inspect.getdoc(type(family)) or "").partition("\n")[0].partition(";")[0].rstrip(".")
        doc += "; encoders" if getattr(family, "stack", "") == "encoder" else ""
        by_doc.setdefault(doc, []).append(model_type)
    return by_doc


def section() -> str:
    """Every model type, for docs/cookbook.md."""
    reasons: dict[str, list[str]] = {}
    for model_type, reason in NEAREST.items():
        reasons.setdefault(reason, []).append(model_type)
    lines = ["## Where transformers reads otherwise", ""]
    lines += ["A config is believed where transformers leaves unread what it says:", ""]
    lines += [f"- {text}" for text in DIFFERENCES.values()]
    unknown = "A type that is not in this table is an error that says so. `encodings(config, "
    unknown += 'like="llama")` reads its keys as Llama\'s.'
    lines += ["", "## Every model type", "", unknown, ""]
    lines += ["| read as | model types |", "| --- | --- |"]
    lines += [
        f"| {doc} | {', '.join(f'`{k}`' for k in types)} |" for doc, types in groups().items()
    ]
    hub = listed("hub").items()
    outside = [", ".join(f"`{x}`" for x, known in hub if known == by) for by in ("code", "keys")]
    lines += ["", "Not in transformers, but in code of their own: the attention of these was read"]
    lines += [f"there ({outside[0]}); these are known by the keys of their configs ({outside[1]})."]
    lines += ["", "What is not read, and why:", "", "| why | model types |", "| --- | --- |"]
    lines += [f"| {why} | {', '.join(f'`{k}`' for k in types)} |" for why, types in reasons.items()]
    return "\n".join(lines)


def page() -> str:
    """docs/cookbook.md."""
    text = TABLE.sub(lambda found: table(table_rows(found[0])), TEXT)
    begin = text.index("## Where transformers reads otherwise")
    return text[:begin] + section() + text[text.index("\n\n[", begin) :]


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
