"""A row of docs/cookbook.md, and the live tests that it may name."""

import dataclasses
from typing import Any

ROTATIONS, BIASES = (f"tests/oracles/test_hf_{name}.py" for name in ("rotations", "biases"))
OWN = "tests/oracles/test_cookbook.py"
CHECKS = {  # what a live test compares with the model's own code, and which test
    "scores": (ROTATIONS, "test_what_is_read_is_what_reaches_the_models_softmax"),
    "logits": (
        "tests/oracles/test_model_logits.py",
        "test_with_our_attention_the_logits_are_theirs",
    ),
    "pairs": (ROTATIONS, "test_gptj_and_codegen_rotate_pairs_of_some_channels"),
    "rotation": (ROTATIONS, "test_falcon_and_roformer_rotate"),
    "axes": ("tests/oracles/test_hf_vision.py", "test_images_rotate_as_theirs"),
    "slopes": (BIASES, "test_alibi"),
    "sinusoids": (BIASES, "test_sinusoids_at_the_input"),
    "weights": (OWN, "test_mapped_weights_give_the_models_attention"),
    "rows": (OWN, "test_mapped_rows_are_what_the_model_adds"),
    "patches": (OWN, "test_mapped_patches_are_what_the_model_adds_at_any_size"),
    "table": (OWN, "test_maes_table_has_its_halves_swapped"),
    "": ("", ""),
}
LOGITS = {  # model types whose logits are compared, too
    "gpt_oss",
    "mimo_v2_flash",
    "cohere2",
    "smollm3",
    "llama4_text",
    "deepseek_v3",
    "qwen3_vl_text",
    "inkling_text",
    "inkling2_text",
}
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
STACKS = ("encoder", "decoder")


@dataclasses.dataclass(frozen=True)
class Row:
    """A family of models.

    Attributes:
      name: of the model.
      model_type: of its config; "" where `pe_jax.hf` reads none.
      trap: what costs hours.
      check: which of `CHECKS` compares with the model's own code.
      config: keys of its released config that concern positions.
      layers: number of layers; the other sizes of the released model do not matter.
      head_dim: E.
    """

    name: str
    model_type: str
    trap: str
    check: str = ""
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
        return config | self.config


def rope(**settings: Any) -> dict[str, Any]:
    """The rotation in a config: of type `default`, unless the settings name another."""
    return {"rope_parameters": {"rope_type": "default", **settings}}
