"""The conformance kit accuses none of transformers' decoders, of tiny sizes and random weights.

B batch, T tokens.
"""

import dataclasses
import inspect
import json
from typing import Any

import numpy as np

from pe_jax import conformance
from tests.oracles.tiny_models import configured, drawn

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

    def check(self, config=True, **options) -> conformance.Report:
        claims = self.config if config is True else config
        own = {"vocab": (3, 59), "start": self.start, "step": self.step}
        return conformance.check(self.logits(), claims, **own | options)
