"""A tiny released model with a tokenizer, and documents for it."""

import dataclasses

import numpy as np
import tokenizers

from experiments.running.extension import haystacks, worlds
from tests.released import recorded
from tests.test_corpus import write

SYLLABLES = "ba de fi go lu ma ne ri so tu va we".split()
WORDS = np.array([a + b + c for a in SYLLABLES for b in SYLLABLES[:6] for c in SYLLABLES[6:]])
VOCAB, WIDTH, INNER, LAYERS = 600, 32, 48, 4
SIZES = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "num_hidden_layers": LAYERS, "vocab_size": VOCAB}


def text(seed: int, words: int = 1800) -> bytes:
    """Sentences of random words."""
    drawn = np.random.default_rng(seed).choice(WORDS, (words // 9, 9))
    return " ".join(f"{' '.join(line).capitalize()}." for line in drawn).encode()


def data(folder) -> str:
    """Three documents for tests, and one that is too short."""
    files = {f"test/{name}.txt": text(n) for n, name in enumerate(("ann", "bob", "cid"))}
    files |= {"train/x": text(7), "validation/y": text(8), "test/short.txt": b"Too short."}
    return write(folder, files)


def tokenizer() -> tokenizers.Tokenizer:
    """Byte-level, with <bos> before a text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    levels = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, levels])
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<bos>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    facts = [*worlds.World(np.random.default_rng(0)).facts, haystacks.NOISE] * 20
    numbers = ["The secret number for x is 1.", "One of the lucky numbers for x is 2."] * 20
    made.train_from_iterator([text(9).decode(), *facts, *numbers], trainer)
    template = tokenizers.processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    made.post_processor = template
    return made


def checkpoint(length: int) -> recorded.Checkpoint:
    """A llama of random weights whose config says that it was trained at a length."""
    layer = {
        **{f"self_attn.{x}_proj": (n, WIDTH) for x, n in (("q", 32), ("k", 16), ("v", 16))},
        **{"self_attn.o_proj": (WIDTH, 32), "mlp.down_proj": (WIDTH, INNER)},
        **{f"mlp.{x}_proj": (INNER, WIDTH) for x in ("gate", "up")},
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (WIDTH,)),
    }
    shapes = {f"model.layers.{n}.{x}.weight": s for n in range(LAYERS) for x, s in layer.items()}
    shapes |= {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    weights = recorded.drawn({name: list(shape) for name, shape in shapes.items()})
    config = {"model_type": "llama", **SIZES, "rope_theta": 1e4, "rms_norm_eps": 1e-5}
    config |= {"max_position_embeddings": length, "tie_word_embeddings": True, "hidden_act": "silu"}
    return dataclasses.replace(recorded.of(weights, config), tokenizer=tokenizer())
