"""Every way of reading longer contexts with a released model: one run per text and measure."""

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from experiments.running.configs.released import SHORT, ReleasedConfig
from experiments.running.extension import longrope_search
from experiments.running.extension.documents import Document, encode
from experiments.running.extension.haystacks import TASKS, Haystack, Maker, vocabulary
from experiments.running.extension.methods import Trained
from experiments.running.extension.reader import QUESTION, Reader, room, score
from experiments.running.files.provenance import save_json
from experiments.running.files.run_names import folder
from experiments.running.schedule.work import Run, Runs, Work, Worker, failing
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.models.surgery import with_encoding
from pe_jax.models.transformer import Transformer
from pe_jax.released import families, files, load
from pe_jax.training.metrics import Progress
from pe_jax.training.step import last_losses
from pe_jax.validation import ConfigError

LOSS, SHORT_TEXT = "loss", "short text"  # tests of the table
Asked = dict[tuple[str, int, int], Haystack]  # by task, length and number of the document
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")


class Released(NamedTuple):
    """A released checkpoint."""

    checkpoint: Any
    trained: Trained
    digest: str


def open_checkpoint(config: ReleasedConfig) -> Released:
    """Reads a checkpoint's config and tokenizer, and no more of its weights than its norms.

    Raises:
      ConfigError: it has no tokenizer, no RoPE, or no trained length; a model that is not read.
    """
    checkpoint = files.read(config.checkpoint)
    where = f"checkpoint={config.checkpoint!r}"
    if checkpoint.tokenizer is None:
        raise ConfigError(f"{where} has no tokenizer.json; copy it into the folder")
    _, model = families.read(checkpoint.config, config.dtype)
    length = config.length or trained_length(families.text(checkpoint.config))
    if not length:
        raise ConfigError(f"{where}: its config has no trained length; pass --config.length")
    trained = Trained(model, length, config.factor, released=True)
    if not any(trained.extends(layer) for layer in model.windows):
        raise ConfigError(
            f"{where}: no layer of {model.encoding!r} has RoPE beyond {length} tokens"
        )
    return Released(checkpoint, trained, digest(checkpoint))


def trained_length(config: Mapping[str, Any]) -> int:
    """The length before any scaling that a Hugging Face config of a text model has; 0: none."""

    def original(value: Any) -> int | None:
        if not isinstance(value, Mapping):
            return None
        inner = (original(x) for x in value.values())
        return value.get("original_max_position_embeddings") or next(filter(None, inner), None)

    known = (config.get(name) for name in LENGTHS)
    return int(original(config) or next(filter(None, known), 0))


def digest(checkpoint: Any) -> str:
    """SHA-256 of the config, the tokenizer, the shapes of all weights and the values of vectors.

    Norms differ in any fine-tune of all weights, and are a small part of a file.
    """
    tensors, sha = checkpoint.tensors, hashlib.sha256()
    about = checkpoint.config, checkpoint.tokenizer.to_str(), sorted(tensors.shapes.items())
    sha.update(json.dumps(about, sort_keys=True, default=str).encode())
    for name, shape in sorted(tensors.shapes.items()):
        if len(shape) == 1:
            sha.update(np.asarray(tensors[name], np.float32).tobytes())
    return sha.hexdigest()


class Report:
    """Reports how far a run is, in the units of `cost`, from its beginning on."""

    def __init__(self, worker: Worker, steps: int):
        self.worker, self.steps, self.begin = worker, steps, time.monotonic()
        worker.report(Progress(worker.label, 0, steps, None, None))

    def __call__(self, share: float, loss: float | None, tokens: int) -> None:
        """Reports a share of the run as done: its loss in nats per token, if known; its tokens."""
        step, speed = round(share * self.steps), tokens / (time.monotonic() - self.begin)
        self.worker.report(Progress(self.worker.label, step, self.steps, loss, speed))


def cost(length: int, texts: int = 1) -> int:
    """The time of a run, in tokens of a short text: of a long one, attention takes as much again.

    SmolLM2-135M takes twice as long per token at 8,192 tokens.
    """
    return texts * (length + length * length // 8192)


class ReleasedMethods:
    """Applies every method to a released model, and measures it on every document."""

    def __init__(
        self,
        config: ReleasedConfig,
        released: Released,
        documents: list[Document],
        asked: Asked,
        needles: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        self.config, self.released, self.documents = config, released, documents
        self.asked, self.needles = asked, needles
        self.has_factors = True  # that are searched, which some methods need

        @functools.cache
        def model(mesh: Mesh) -> Transformer:
            several = mesh if mesh.size > 1 else None
            return load.model(released.checkpoint, config.dtype, several)

        self.model: Callable[[Mesh], Transformer] = model

    @property
    def search_steps(self) -> int:
        """The cost of the search."""
        return cost(self.released.trained.target, self.config.search)

    def search(self, worker: Worker) -> dict:
        """What `longrope_search.search` returns, on needles in another document.

        Each loss is kept in a file, so that a search that was stopped goes on.
        """
        trained, config = self.released.trained, self.config
        report = Report(worker, self.search_steps)
        assert self.needles is not None  # a method needs the factors
        row, in_answer = jnp.asarray(self.needles[0])[None], self.needles[1]
        in_answer = in_answer[in_answer.argmax() :]  # from the first answer on
        graph, state = nnx.split(self.model(worker.mesh))
        gain = LongRoPE((1.0,), (1.0,), trained.length, factor=trained.factor).attention_factor

        @jax.jit
        def losses(state: Any, factors: jax.Array) -> jax.Array:
            model = nnx.merge(graph, state)
            longrope_search.set_factors(model, factors, gain, trained.extends)
            return last_losses(model, row, len(in_answer))[0]

        kept = Path(config.workdir) / "factors.tried.json"
        known: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
        count = 0

        def known_loss(factors: np.ndarray) -> float:
            nonlocal count
            worker.stop.check()
            name = json.dumps(factors.tolist())
            if name not in known:
                answers = np.asarray(losses(state, jnp.asarray(factors, jnp.float32)))[in_answer]
                known[name] = float(answers.mean())
                save_json(kept, known)
            count += 1
            report(min(count / config.search, 1), known[name], count * trained.target)
            return known[name]

        theta = longrope_search.frequencies(trained.rope, trained.model.dims.head_dim)
        return longrope_search.search(
            known_loss, theta, trained.factor, trained.length, config.search
        )

    def work(self, name: str, spec: str, encoding: str) -> Work:
        """The method of that name, `spec` in the config and `encoding` for this model."""
        steps = [steps for _, _, steps in self._cells() for _ in self.documents]
        return Work(name, steps, self._runs(name, spec, encoding))

    def _cells(self) -> list[tuple[str, int, int]]:
        """What is measured on each document: test, length and cost."""
        cells = [(SHORT_TEXT, SHORT, cost(SHORT, self.config.windows))]
        for length in self.config.lengths:
            cells.append((LOSS, length, cost(length)))
            cells += [(task, length, cost(length)) for task in self.config.tasks]
        return cells

    def _runs(self, name: str, spec: str, encoding: str) -> Runs[dict]:
        """Runs that come to document → test → length → its result.

        Raises:
          ConfigError: saved results are another encoding's.
        """
        model = functools.cache(lambda mesh: with_encoding(self.model(mesh), encoding))
        reader = functools.lru_cache(1)(lambda mesh, length: Reader(model(mesh), length))
        by_document: dict[str, Any] = {str(d.number): {} for d in self.documents}
        top = Path(self.config.workdir, "runs", folder(spec))
        for test, length, steps in self._cells():
            runs = []
            for document in self.documents:
                label = f"{name} {document.name} {test} {length}"
                file = top / f"document{document.number}" / f"{folder(test)}-{length}.json"
                measure = functools.partial(
                    self._measure, test, length, document, reader, encoding, steps
                )
                if "{searched}" in spec and not self.has_factors:
                    measure = functools.partial(failing, longrope_search.FAILED)
                runs.append(Run(label, file, steps, measure))
            results = yield runs
            for document, run, result in zip(self.documents, runs, results, strict=True):
                if result.get("encoding", encoding) != encoding:
                    raise ConfigError(
                        f"encodings: {name!r} is {encoding!r} here, {result['encoding']!r} in"
                        f" {run.file}; use a new --config.workdir"
                    )
                by_document[str(document.number)].setdefault(test, {})[str(length)] = result
        return by_document

    def _measure(
        self,
        test: str,
        length: int,
        document: Document,
        reader: Callable[[Mesh, int], Reader],
        encoding: str,
        steps: int,
        worker: Worker,
    ) -> dict | None:
        report = Report(worker, steps)
        result = {"encoding": encoding, "status": "ok", "reason": ""}
        reads, config = reader(worker.mesh, length), self.config
        if test == SHORT_TEXT:
            means = []
            for row in document.short(config.windows):  # one by one: logits take much memory
                means.append(reads.losses(row, SHORT).mean())
                done = len(means)
                report(done / config.windows, float(np.mean(means)), done * SHORT)
            numbers = {test: np.array(means)}
        elif test == LOSS:
            losses = reads.losses(document.row(length, max(config.lengths)), config.targets)
            report(1, float(losses.mean()), length)
            numbers = {test: losses}
        else:
            numbers = self._answers(
                self.asked[test, length, document.number], reads, report, worker
            )
            if numbers is None:
                return None
        rounded = {name: np.round(x.astype(float), 6).tolist() for name, x in numbers.items()}
        return result | {"numbers": rounded}

    def _answers(
        self, text: Haystack, reads: Reader, report: Report, worker: Worker
    ) -> dict[str, np.ndarray] | None:
        """Test → what is right of each answer, and "test: loss" → its loss; None after a signal."""
        tokens, whole = 0, len(text.ids) + QUESTION * len(text.questions)
        ask, encoded = None, functools.partial(encode, self.released.checkpoint.tokenizer)
        for count, cache in reads.read(text.ids):
            ask, tokens = functools.partial(reads.answer, cache), tokens + count
            report(tokens / whole, None, tokens)
            if worker.stop.signal is not None:
                return None
        assert ask is not None  # a text has tokens
        numbers: dict[str, list[float]] = {}
        for question in text.questions:
            prompt, answer = encoded(question.prompt), encoded(question.answer)
            right, loss = score(ask, prompt, answer, [*map(encoded, question.others)])
            numbers.setdefault(question.test, []).append(right)
            numbers.setdefault(f"{question.test}: loss", []).append(loss)
            tokens += QUESTION
            report(tokens / whole, loss, tokens)
        return {test: np.array(x) for test, x in numbers.items()}


def make_texts(config: ReleasedConfig, tokenizer: Any, documents: list[Document]) -> Asked:
    """The texts of all tasks, at all lengths, of all documents, with their questions.

    Raises:
      ConfigError: there is no such task; a length without room for what is hidden, or for a
        question; too few words.
    """
    for task in config.tasks:
        if task not in TASKS:
            raise ConfigError(f"tasks: {task!r} is unknown; pass some of {', '.join(TASKS)}")
    words = vocabulary(document.text for document in documents) if config.tasks else []
    asked, longest = {}, max(config.lengths)
    for document in documents:
        maker = Maker(document, words, tokenizer, longest, config.samples, config.seed)
        for task in config.tasks:
            for length in config.lengths:
                text = maker.make(task, max(room(length), 0))
                for question in text.questions:
                    parts = question.prompt, max(question.answer, *question.others, key=len)
                    count = sum(len(encode(tokenizer, part)) for part in parts)
                    if count > QUESTION:
                        what = f"tasks: a question of {task!r} has {count} tokens"
                        raise ConfigError(f"{what}, at most {QUESTION} are read; leave it out")
                asked[task, length, document.number] = text
    return asked
