"""The rows of docs/cookbook.md, read from the page, with the configs that they stand for.

A row's name, model type, trap and check are written in the page. What `pe_jax.hf` reads in its
config is not: `python -m tools.cookbook` computes those columns, and the live tests
(`pytest -m oracles`) build the model and ask it, too.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

from pe_jax import hf
from pe_jax.hf import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "cookbook.md"
TEXT = PAGE.read_text(encoding="utf-8")
TABLE = re.compile(r"^\| model .*?(?=\n\n)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"^\[(\w+)\]: \.\./(\S+) '(\w+)'$", re.MULTILINE)
CHECKS = {name: (path, test) for name, path, test in LINK.findall(TEXT)}  # live tests, by check

WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
STACKS = ("encoder", "decoder")


def rope(**settings: Any) -> dict[str, Any]:
    """The rotation in a config: of type `default`, unless the settings name another."""
    return {"rope_parameters": {"rope_type": "default", **settings}}


LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4}
LONGROPE |= {"short_factor": [1.05] * 48, "long_factor": [1.08] * 24 + [2.5] * 24}
DEEPSEEK = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32, "beta_slow": 1}
DEEPSEEK |= {"original_max_position_embeddings": 4096}
GEMMA3 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
DEBERTA |= {"position_biased_input": False, "max_position_embeddings": 512}
DEBERTA_V2 = {**DEBERTA, "position_buckets": 256, "max_relative_positions": -1}
CONFIGS: dict[str, dict[str, Any]] = {  # keys that concern positions, unless transformers' defaults
    "Llama 2": rope(rope_theta=1e4),
    "Llama 3.1": rope(**LLAMA3),
    "Llama 4": {"attention_chunk_size": 8192},
    "Qwen 1.5–2.5": rope(rope_theta=1e6),
    "Qwen 3": {**rope(rope_theta=1e6), "head_dim": 128},
    "Mistral 7B v0.1": {**rope(rope_theta=1e4), "sliding_window": 4096},
    "Phi-3 4k": {**rope(rope_theta=1e4), "sliding_window": 2047},
    "Phi-3 128k": {
        **rope(**LONGROPE),
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
    },
    "Phi-2": rope(rope_theta=1e4, partial_rotary_factor=0.4),
    "GPT-NeoX, Pythia": rope(rope_theta=1e4, partial_rotary_factor=0.25),
    "GPT-J": {"rotary_dim": 64},
    "GLM-4": rope(rope_theta=1e4, partial_rotary_factor=0.5),
    "Cohere Command R": rope(rope_theta=8e6),
    "Cohere Command R7B": {**rope(rope_theta=5e4), "sliding_window": 4096},
    "Gemma 2": {"query_pre_attn_scalar": 144},
    "Gemma 3": {"rope_parameters": GEMMA3, "sliding_window": 1024},
    "Granite 3": {"attention_multiplier": 0.015625},
    "Granite SWASH": {"attention_multiplier": 0.015625, "layer_rope_theta": [0, 1e4, 1e4, 1e4] * 3},
    "DeepSeek-V3": rope(**DEEPSEEK, mscale=1.0, mscale_all_dim=1.0),
    "DeepSeek-V2": rope(**DEEPSEEK, mscale=0.707, mscale_all_dim=0.707),
    "DeepSeek-V4": {"layer_types": ["sliding_attention"] * 12},
    "MiniMax-M2": {"head_dim": 128, "rotary_dim": 64},
    "Falcon 7B": {"alibi": False, **rope(rope_theta=1e4)},
    "Qwen2-VL": rope(rope_theta=1e6, mrope_section=[16, 24, 24]),
    "Qwen3-VL": rope(rope_theta=5e6, mrope_section=[24, 20, 20]),
    "ESM-2": {"position_embedding_type": "rotary"},
    "EuroBERT": rope(rope_theta=250000.0),
    "DINOv3": {"num_register_tokens": 4},
    "Qwen2-VL vision": {"embed_dim": 64, "depth": 2},
    "MPT": {"attn_config": {"alibi": True, "alibi_bias_max": 8}},
    "Falcon RW": {"alibi": True},
    "T5, Flan-T5": {"d_kv": 32},
    "UMT5": {"d_kv": 32},
    "LongT5": {"d_kv": 32},
    "DeBERTa v1": DEBERTA,
    "DeBERTa v2, v3": {**DEBERTA_V2, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "DeBERTa v2 with `share_att_key: false`": DEBERTA_V2,
    "Swin": {"window_size": 7},
    "BEiT": {"use_relative_position_bias": True},
    "Swin v2": {"window_size": 8, "image_size": 256},
    "RoBERTa, XLM-R": {"max_position_embeddings": 514, "pad_token_id": 1},
    "DINOv2": {"image_size": 518, "patch_size": 14},
    "DINOv2 with registers": {"image_size": 518, "patch_size": 14},
    "SigLIP 2 (NaFlex)": {"num_patches": 256},
}
HEAD_DIMS = {"Phi-3 128k": 96, "Phi-2": 80, "GPT-J": 256, "Qwen2-VL": 128, "Qwen3-VL": 128}


@dataclasses.dataclass(frozen=True)
class Row:
    """A family of models.

    Attributes:
      model_type: of its config; "" where `pe_jax.hf` reads none.
      trap: what costs hours.
      check: which of `CHECKS` compares with the model's own code.
      logits: whether its logits are compared, too.
      config: keys of its released config that concern positions.
      layers: number of layers; the other sizes of the released model do not matter.
    """

    name: str
    model_type: str
    trap: str
    check: str = ""
    logits: bool = False
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    layers: int = 12
    head_dim: int = 32

    @property
    def settings(self) -> dict[str, Any]:
        """A config that `pe_jax.hf.encodings` reads."""
        config = {"model_type": self.model_type}
        if not self.model_type.startswith("swin"):  # which has them per stage
            config |= dict.fromkeys(WIDTHS, 2 * self.head_dim) | dict.fromkeys(HEADS, 2)
            config |= dict.fromkeys(LAYERS, self.layers)
            config |= {f"{stack}_attention_heads": 2 for stack in STACKS}
            config |= {f"{stack}_layers": self.layers for stack in STACKS}
        read = hf.encodings(config | self.config)
        spelled = {key for layer in read for key in layer.extras.unread}  # as other families do
        return {key: x for key, x in config.items() if key not in spelled} | self.config

    @property
    def checked(self) -> str:
        """The page's last cell: what live tests compare with the model's own code."""
        checks = [f"[{self.check}]"] * bool(self.check) + ["[logits]"] * self.logits
        return (", ".join(checks) or "config alone") if self.model_type else "no live test"


def table_rows(table: str) -> list[Row]:
    """The rows of a table of the page; a new row may lack the columns that are computed.

    Raises:
      ValueError: a row is malformed; says which one and what is wrong.
    """
    head, _, *lines = table.splitlines()
    return [_row(line, head.count("|") - 1) for line in lines]


def _row(line: str, columns: int) -> Row:
    def need(holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"docs/cookbook.md, row {line[:60]!r}: {what}")

    cells = [cell.strip() for cell in line.split("|")]
    whole = len(cells) in (3 + 2, columns + 2) and not cells[0] + cells[-1]
    need(whole, f"not | model | the trap | checked |, nor all {columns} cells")
    model, trap, checked = cells[1], *cells[-3:-1]
    names = re.findall(r"^\*\*(.+)\*\*(?:<br>`(.+)`)?$", model)
    need(len(names) == 1, f"{model!r} is not **name**<br>`type`")
    name, model_type = names[0]
    need(model_type in ("", *FAMILIES), f"the type {model_type!r} is not read by pe_jax.hf")
    need(trap not in ("", "–"), "the trap is missing")
    checks = re.findall(r"\[(.*?)\]", checked)
    unknown = [check for check in checks if check not in CHECKS]
    need(not unknown, f"{unknown} are not linked to tests at the page's end")
    check = next((check for check in checks if check != "logits"), "")
    sizes = {"config": CONFIGS.get(name, {}), "head_dim": HEAD_DIMS.get(name, 32)}
    row = Row(name, model_type, trap, check, "logits" in checks, **sizes)
    need(checked == row.checked, f"its last cell should be {row.checked!r}")
    return row


def page_rows(text: str) -> tuple[Row, ...]:
    """The rows of the page's text, of all tables whose header begins with `model`.

    Raises:
      ValueError: a row is malformed or outside such a table, or a config has no row.
    """
    found = tuple(row for table in TABLE.findall(text) for row in table_rows(table))
    lost = re.findall(r"^\| \*\*(.+?)\*\*", TABLE.sub("", text), re.MULTILINE)
    lost += sorted({*CONFIGS, *HEAD_DIMS} - {row.name for row in found})
    if lost:
        raise ValueError(f"docs/cookbook.md: {lost[0]!r} is in no table under a line | model | …")
    return found


ROWS = page_rows(TEXT)
LOGITS = {row.model_type for row in ROWS if row.logits}
