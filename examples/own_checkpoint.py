r"""A trained RoPE model at four times its length: the encoding changes, the weights do not.

    python -m examples.own_checkpoint

trains the model of examples/plain_jax.py with RoPE on 32 tokens and
prints its loss there and on 128, as it is and by methods that need no training; then a Hugging Face
config with YaRN. For runs of `experiments.train` one command compares all methods, also
after a short fine-tune:

    python -m experiments.extend --config=configs/extend.py --runs=runs/extend_base
"""

import functools

import jax

import pe_jax
from examples import plain_jax, repeat

FACTOR = 4
METHODS = (
    "rope",
    "rope(scaling=yarn(factor=4, original_length=32))",
    "rerope(window=16)",
)
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32}
LLAMA |= {"num_attention_heads": 4, "max_position_embeddings": 32}


def losses() -> dict[str, list[float]]:
    """Nats per token of each method, at the trained length and at `FACTOR` times that."""
    (rope,) = pe_jax.parse("rope")
    lengths = repeat.LENGTH, FACTOR * repeat.LENGTH
    rows = [jax.random.randint(jax.random.key(2), (16, n), 0, repeat.VOCAB) for n in lengths]
    weights = plain_jax.init(rope, jax.random.key(1))
    weights, _ = repeat.train(lambda w, tokens: plain_jax.model(rope, w, tokens)[0], weights)

    def loss(method: str, tokens: jax.Array) -> float:
        model = jax.jit(functools.partial(plain_jax.model, *pe_jax.parse(method)))
        return float(repeat.loss(model(weights, tokens)[0], tokens))

    return {method: [loss(method, tokens) for tokens in rows] for method in METHODS}


if __name__ == "__main__":
    for method, (trained, longer) in losses().items():
        print(f"{method:50} {trained:.2f} as trained, {longer:.2f} at {FACTOR} times the length")
    yarn = pe_jax.encodings.rope_scaling.YaRN(FACTOR, LLAMA["max_position_embeddings"])
    print(pe_jax.hf.with_scaling(LLAMA, yarn))
