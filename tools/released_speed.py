"""A released checkpoint in pe_jax and in transformers (PyTorch's SDPA): time and peak memory.

    python -m tools.released_speed --checkpoint=smollm2
    python -m tools.released_speed --checkpoint=smollm2 --tasks=prefill:2048,decode:8192,train:2048

`prefill:n` reads n tokens and gives the logits of the last; `decode:n` reads one token after n in
a cache, each time one more, as generation does; `train:n` is a step on n tokens: loss, gradients
and AdamW. Both sides are timed in turn in one process (see experiments/measuring/timing.py), then
each once in a process of its own for its peak memory (Linux). It needs torch and transformers: the
environment of `make oracles` has both. On a CPU as many threads as cores; float32.
"""

import functools
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.console
import rich.table
from absl import app, flags
from flax import nnx

from experiments.measuring import timing
from pe_jax.models.surgery import layer_by_layer
from pe_jax.models.transformer import Transformer
from pe_jax.released import files, load
from pe_jax.training.step import token_losses

TASKS = ("prefill:2048", "prefill:8192", "prefill:32768", "decode:8192", "train:2048")
RATE = 1e-5
ROOM = 256  # tokens that a cache has room for beyond those that were read
SIDES = ("pe_jax", "transformers")


def tokens(count: int, vocabulary: int) -> np.ndarray:
    """Random tokens: int32 [1, count]."""
    return np.random.default_rng(0).integers(0, vocabulary, (1, count), np.int32)


def ours(model: Transformer, task: str, count: int) -> Callable[[], Any]:
    """The task in pe_jax, without arguments."""
    row = jnp.asarray(tokens(count + 1, model.config.vocab))
    graph, state = nnx.split(model)

    def merged(state: Any) -> Any:
        return nnx.merge(graph, state)

    if task == "prefill":

        def last(state, row):
            model = merged(state)
            return model.logits(model.hidden(row)[0][:, -1])

        read = jax.jit(last)
        return lambda: read(state, row[:, 1:])
    if task == "decode":
        graph, state = nnx.split(layer_by_layer(model))

        @functools.partial(jax.jit, donate_argnums=2)
        def read_more(state, row, cache):
            return merged(state)(row, cache=cache)

        fill = jax.jit(lambda state, row, cache: merged(state).hidden(row, cache=cache)[1])
        cache = fill(state, row[:, 1:], model.init_cache(1, count + ROOM))

        def decode():
            nonlocal cache
            logits, cache = read_more(state, row[:, :1], cache)
            return logits

        return decode
    adamw = optax.adamw(RATE)
    moments = adamw.init(state)

    def loss(state, row):
        return token_losses(merged(state)(row[:, :-1]), row[:, 1:]).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train(state, moments, row):
        value, gradients = jax.value_and_grad(loss)(state, row)
        updates, moments = adamw.update(gradients, moments, state)
        return optax.apply_updates(state, updates), moments, value

    held = jax.tree.map(jnp.copy, state), moments

    def step():
        nonlocal held
        *held, value = train(*held, row)
        return value

    return step


def theirs(folder: str, task: str, count: int) -> Callable[[], Any]:
    """The task in transformers, without arguments."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    row = torch.tensor(tokens(count + 1, model.config.vocab_size), dtype=torch.long)
    if task == "train":
        adamw = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=1e-4, fused=True)

        def step():
            logits = model(row[:, :-1], use_cache=False).logits
            value = torch.nn.functional.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten())
            value.backward()
            adamw.step()
            adamw.zero_grad()
            return value.item()

        return step
    if task == "prefill":

        def read():
            with torch.inference_mode():
                out = model(row[:, 1:], use_cache=False, logits_to_keep=1)
            return out.logits[:, -1].numpy()

        return read
    with torch.inference_mode():
        cache = model(row[:, 1:], use_cache=True, logits_to_keep=1).past_key_values

    def decode():
        with torch.inference_mode():
            logits = model(row[:, :1], past_key_values=cache, use_cache=True).logits
        return logits[:, -1].numpy()

    return decode


def peak(source: str, folder: str, task: str, side: str) -> float:
    """The peak memory, in GiB, of a process that runs one side of a task twice."""
    command = [sys.executable, "-m", "tools.released_speed", f"--checkpoint={source}"]
    command += [f"--tasks={task}", f"--only={side}", f"--folder={folder}"]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) / 2**20


def main(_) -> None:
    """Prints the table, or the peak memory of one side in KiB."""
    values = flags.FLAGS
    source, only = values.checkpoint, values.only
    if only == SIDES[1]:  # without a word of JAX's memory
        run(theirs(values.folder, *_task(values.tasks[0])))
        return
    checkpoint = files.read(source)
    model = load.model(checkpoint)
    if only:
        run(ours(model, *_task(values.tasks[0])))
        return
    table = rich.table.Table("task", "pe_jax s", "transformers s", "ratio", "GiB, GiB")
    table.title = f"{source}, float32, {values.rounds} rounds in turn: medians (quartiles)"
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent, "model"))
        load.write(model, folder, like=checkpoint)
        for task in values.tasks:
            sides = (ours(model, *_task(task)), theirs(folder, *_task(task)))
            first = [np.asarray(side()).ravel() for side in sides]
            if not np.allclose(*first, atol=2e-3):
                raise SystemExit(f"{task}: they differ by {np.abs(first[0] - first[1]).max():.2g}")
            taken = timing.interleave(dict(zip(SIDES, sides, strict=True)), values.rounds)
            ratios = np.divide(taken[SIDES[0]], taken[SIDES[1]])
            low, middle, high = np.percentile(ratios, (25, 50, 75))
            memory = ", ".join(f"{peak(source, folder, task, side):.1f}" for side in SIDES)
            seconds = [f"{np.median(taken[side]):.3g}" for side in SIDES]
            table.add_row(task, *seconds, f"{middle:.2f} ({low:.2f}–{high:.2f})", memory)
            rich.console.Console(width=100).print(table)


def run(side: Callable[[], Any]) -> None:
    """Calls a side twice, and prints the peak memory of this process, in KiB."""
    for _ in range(2):
        jax.block_until_ready(side())
    status = Path("/proc/self/status").read_text()  # getrusage counts the parent's peak too
    print(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # pyright: ignore[reportOptionalSubscript]


def _task(text: str) -> tuple[str, int]:
    task, _, count = text.partition(":")
    return task, int(count)


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", "smollm2", "a folder, a .gguf file, smollm2 or gemma3")
    flags.DEFINE_list("tasks", ",".join(TASKS), "prefill:n, decode:n and train:n")
    flags.DEFINE_integer("rounds", 5, "of timing", lower_bound=3)
    flags.DEFINE_enum("only", None, SIDES, "run this side alone, and print its peak memory in KiB")
    flags.DEFINE_string("folder", None, "with --only: where the checkpoint was written")
    app.run(main)
