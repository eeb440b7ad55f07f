"""The conformance kit accuses none of transformers' decoders, of tiny sizes and random weights.

B batch, T tokens.
"""

import dataclasses
import functools
import inspect
import json
from typing import Any

import numpy as np
import pytest

from pe_jax import conformance
from tests.oracles.tiny_models import configured, drawn

pytestmark = pytest.mark.oracles

SIZES = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8}
SIZES |= {"num_layers": 3, "n_layer": 3, "n_head": 4, "n_embd": 32, "d_model": 32, "n_layers": 3}
SIZES |= {"n_heads": 4, "num_heads": 4, "max_position_embeddings": 2**17, "sliding_window": 7}
SIZES |= {
    "attention_chunk_size": 10,
    "is_decoder": True,
    "vocab_size": 60,
    "pad_token_id": 0,
    "num_key_value_heads": 4,
    "ffn_dim": 32,
    "decoder_layers": 3,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}


@dataclasses.dataclass
class Decoder:
    """A causal model of transformers as functions for the kit."""

    kind: str
    settings: dict[str, Any]

    def __post_init__(self):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        config = configured(self.kind, **{**SIZES, **self.settings})
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        self.model = drawn(model.float())
        self.config = json.loads(config.to_json_string(use_diff=False))
        self.takes = inspect.signature(self.model.forward).parameters

    def run(self, tokens, positions=None, mask=None, **options):
        given = {"input_ids": tokens, "position_ids": positions, "attention_mask": mask}
        given = {
            k: self.torch.tensor(np.asarray(v)).long() for k, v in given.items() if v is not None
        }
        with self.torch.no_grad():
            return self.model(**given, **options)

    def logits(self):
        """The function with the arguments that the model has."""
        if "position_ids" in self.takes:
            return lambda tokens, positions=None, mask=None: (
                self.run(tokens, positions, mask, use_cache=False).logits
            )
        return lambda tokens, mask=None: self.run(tokens, None, mask, use_cache=False).logits

    def start(self, batch, capacity):
        return None  # the model makes its own

    def step(self, cache, tokens, positions=None, mask=None):
        places = positions if "position_ids" in self.takes else None
        out = self.run(tokens, places, mask, past_key_values=cache, use_cache=True)
        return out.logits, out.past_key_values

    def hidden(self, tokens):
        states = self.run(tokens, use_cache=False, output_hidden_states=True).hidden_states
        return [*states]

    def check(self, **options) -> conformance.Report:
        own = {"vocab": (3, 59), "start": self.start, "step": self.step, "config": self.config}
        return conformance.check(self.logits(), **own | options)


KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {},
    "gpt2": {},
    "gpt_oss": {},
    "bloom": {},
    "llama4_text": {},
    "mistral": {},
    "qwen2_moe": {},
    "ministral": {},
    "modernbert-decoder": {},
    "bart": {},
    "roberta": {},
    "olmo_hybrid": {},
}
SCALED = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
SCALED |= {"rope_theta": 1e4}


@pytest.mark.parametrize("kind", KINDS)
def test_no_decoder_of_transformers_is_accused(oracles, kind):
    report = Decoder(kind, KINDS[kind]).check()
    assert report.ok, report
    for probe in ("right padding", "decode one by one", "causal", "prefix = row"):
        assert report[probe].verdict == "held", report


def test_what_a_model_does_is_held_to_what_its_config_says(oracles):
    scaled = Decoder("llama", {"rope_parameters": SCALED})
    assert scaled.check()["frequencies"].verdict == "held"
    plain = Decoder("llama", {})
    row = plain.check(config=scaled.config)["frequencies"]
    assert row.verdict == "broken" and "scaling is not applied" in row.cause
    row = Decoder("mistral", {}).check(config=Decoder("mistral", {"sliding_window": 6}).config)
    assert "reads windows of 7; declared 6" in row["window"].cause
    layered = Decoder("gemma3_text", {"sliding_window": 7})
    assert layered.check(hidden=layered.hidden)["window"].verdict == "held"


def test_half_precision_is_not_accused_of_its_rounding(oracles):
    import torch

    for kind, verdict in {"llama": "held", "gpt2": "held", "gemma3_text": "blind"}.items():
        decoder = Decoder(kind, {})
        decoder.model = decoder.model.to(torch.bfloat16)
        report = decoder.check()
        assert report.ok and report["decode padded"].verdict == verdict, report


@pytest.fixture
def flax_decoder(oracles):
    """A layer of `nnx.MultiHeadAttention` with `nnx.RoPE`, as start and step, and as logits."""
    import jax
    from flax import nnx

    if not hasattr(nnx, "RoPE"):
        pytest.skip("flax is older than nnx.RoPE: 0.12.12 has it")
    rngs, width = nnx.Rngs(0), 32
    embed, head = nnx.Embed(60, width, rngs=rngs), nnx.Linear(width, 60, rngs=rngs)
    attend = functools.partial(nnx.dot_product_attention_with_rope, rope=nnx.RoPE())
    layer = nnx.MultiHeadAttention(4, width, attention_fn=attend, decode=False, rngs=rngs)

    @jax.jit
    def logits(tokens):
        x = embed(tokens)
        return head(x + layer(x, is_causal=True))

    def start(batch, capacity):
        layer.init_cache((batch, capacity, width))

    def step(cache, tokens):
        out = []
        for token in tokens.T[:, :, None]:  # it takes one at a time
            x = embed(token)
            out.append(np.asarray(head(x + layer(x, decode=True))))
        return np.concatenate(out, 1), cache

    return {"model": logits, "start": start, "step": step}


def test_flaxs_rope_decodes_wrongly(flax_decoder):
    report = conformance.check(**flax_decoder, config="rope", head_dim=8, vocab=60, length=24)
    assert {row.probe for row in report.broken} == {
        "decode one by one",
        "decode after a prompt",
        "decode in chunks",
    }
    row = report["decode one by one"]
    assert row.first == "token 1" and row.units > 0.1
