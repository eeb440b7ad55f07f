"""A tiny released model as a folder of the Hub, with a tokenizer of letters, to start runs from.

The weights are drawn from their names (`tests.released.recorded`).
"""

import functools
import json
import pathlib

import pytest

from pe_jax.released import files, load
from pe_jax.released.checkpoint import Checkpoint
from tests.released import recorded

BEGIN, END = "<s>", "<|endoftext|>"
LETTERS = "abcdefghijklmnopqrstuvwxyz "
BEGIN_ID, END_ID = len(LETTERS), len(LETTERS) + 1


def write(folder: pathlib.Path, case: str = "llama", begins: bool = False, **config) -> Checkpoint:
    """Writes a model of `recorded.CASES`, with these keys of its config, and reads it.

    With `begins` its tokenizer puts a token before each text.
    """
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    own = recorded.checkpoint(recorded.load()[case], **config)
    load.write(load.model(own), folder, like=own)
    vocab = {x: k for k, x in enumerate([*LETTERS, BEGIN, END])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens([BEGIN, END])
    if begins:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=[BEGIN, "$A"], special_tokens=[(BEGIN, BEGIN_ID)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return files.read(folder)


@functools.cache
def tensors(case: str = "llama"):
    """The weights that `write` writes."""
    return recorded.drawn(recorded.load()[case]["shapes"])
