"""Runs of one program in the processes of a Ray cluster: on GPUs of a machine, or on many machines.

Each process starts the same program with the same config. Where the program would run its list of
work, it does the runs that the head asks for, and sends their results back: so only the config,
results and progress go over the network. Ray starts the processes where devices are free, and tells
when one is lost.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import queue
import re
import socket
import sys
import tarfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import Any, NamedTuple

from absl import logging
from jax.sharding import Mesh

from experiments.running.command import config_files, launch
from experiments.running.configs.sweep import Sweep
from experiments.running.files.manifest import PACKAGES
from experiments.running.files.provenance import commit, environment, versions
from experiments.running.process import distributed, signals
from experiments.running.process.errors import Refused
from experiments.running.process.ray_nodes import Share, connected, ray_module
from experiments.running.schedule.pending import Begun, Place
from experiments.running.schedule.work import TRIES, Lost, Run, Work, Worker, do, one_line
from pe_jax.training.metrics import Progress
from pe_jax.validation import ConfigError

MINUTES = 10  # until a process must have started and opened its data
POLL = 1.0  # seconds between looks at progress and signals
SAME = ("code", "corpus", "tokens", "digests")  # of a manifest, on every node
HOST: "Host | None" = None  # in a process of a cluster


class Start(NamedTuple):
    """What a process of a cluster starts from.

    `same` is what must be here as on the head, `path` where Python finds modules; `modules` has the
    files of the script and of the config, which may register encodings.
    """

    program: Callable[[Any], Any]
    config: Sweep
    same: dict[str, Any]
    folder: str
    path: list[str]
    modules: dict[str, str]


def same(manifest: dict) -> dict[str, Any]:
    """What must be the same on every node: code, data, versions."""
    found = {name: manifest[name] for name in SAME if name in manifest}
    here = {"commit": commit(), **versions(PACKAGES)}
    return json.loads(json.dumps(found)) | here


class Answer(NamedTuple):
    """What came of a run.

    The result is None if it was stopped; `files` is the run's folder, as a tar, where the head does
    not see it; `reports` are the last ones.
    """

    result: dict | None
    files: bytes = b""
    reports: Sequence[Progress] = ()


class Host:
    """A process of a cluster: the program runs in a thread of it, and does runs that it is told.

    It is number `rank` of the `count` processes of a run.
    """

    def __init__(self, start: Start, rank: int, count: int):
        global HOST
        HOST, self.start = self, start
        self.rank, self.count = rank, count
        self.stop = signals.Stop()  # the head hears signals
        self.places: queue.SimpleQueue[Place] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[dict | Answer | BaseException] = queue.SimpleQueue()
        self.private = False  # whether the workdir is another one than the head's
        self.progress: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()

    def _program(self, coordinator: str) -> None:
        start = self.start
        try:
            if self.count > 1:
                distributed.connect(coordinator, self.count, self.rank)
            os.chdir(start.folder)
            sys.path += [entry for entry in start.path if entry not in sys.path]
            for name, file in start.modules.items():
                config_files.imported(file, name)
            launch.quiet_libraries()
            launch.keep_programs()
            start.program(start.config)
        except Refused as error:
            self._fail(ConfigError, error.message)
        except (ConfigError, OSError, ImportError) as error:
            self._fail(ConfigError, str(error))
        except BaseException:
            self._fail(RuntimeError, traceback.format_exc())

    def _fail(self, kind: type[Exception], text: str) -> None:
        self.answers.put(kind(f"node {socket.gethostname()}: {text}"))

    def opened(self, manifest: dict, path: Path, mesh: Mesh) -> "Told":
        """What `driver.opened` gives the program here.

        Raises:
          ConfigError: code, data or versions are not the head's.
        """
        here, self.private = same(manifest), not path.exists()
        for name, value in self.start.same.items():
            if here.get(name) != value:
                raise ConfigError(f"{name} is {here.get(name)!r} here, {value!r} on the head")
        node = {**environment(), "node": socket.gethostname(), "private": self.private}
        self.answers.put(node)
        return Told(self, mesh)

    def address(self) -> str:
        """A free one, where the processes of a run meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray_module().util.get_node_ip_address()}:{free.getsockname()[1]}"

    def ready(self, coordinator: str) -> dict:
        """Starts the program: the environment here, once it has opened its data.

        `coordinator` is the `address` of the first process of a run.
        """
        threading.Thread(target=self._program, args=(coordinator,), daemon=True).start()
        return self._answer()

    def do(self, place: Place) -> Answer:
        """What came of a run."""
        self.places.put(place)
        return self._answer()._replace(reports=self._reported(0))

    def _answer(self) -> Any:
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def reports(self) -> list[Progress]:
        """What was reported since the last call; it waits for a report if there is none."""
        return self._reported(POLL)

    def _reported(self, seconds: float) -> list[Progress]:
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self.progress.get(seconds > 0, seconds))
            while True:
                found.append(self.progress.get_nowait())
        return found

    def end(self, signal: int) -> None:
        """Lets the run save and stop; one that does not hear, as in a compiler, is left."""
        if self.count > 1:
            os.kill(os.getpid(), SIGTERM)  # JAX hears it, and all processes stop at one step
        else:
            self.stop.signal = signal
        until = time.monotonic() + signals.GRACE
        while self.stop.unsaved or time.monotonic() < until:
            time.sleep(0.05)
        self.answers.put(Answer(None))


def end_with_parent(parent: int) -> None:
    """Ends the process once Ray's on this node is gone: another one may do the run by then."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)


class Told:
    """The driver of a program in a process of a cluster: it does the runs that it is told."""

    def __init__(self, host: Host, mesh: Mesh):
        self.host, self.mesh = host, mesh
        self.lists = 0  # of work, before the present one
        self.place: Place | None = None  # in a later list than the present one

    def run(self, works: Iterable[Work]) -> dict[Any, Any]:
        """Name → what came of the work; returns when a run of a later list is asked for."""
        begun = {work.name: Begun(work) for work in works}
        while len((place := self.place or self.host.places.get()).earlier) == self.lists:
            self.place = None
            run = begun[place.work].at(place)
            worker = Worker(run.label, self.mesh, self.host.stop, self.host.progress.put)
            result = do(run, worker)
            sends = self.host.private and self.host.rank == 0 and run.file.parent.exists()
            self.host.answers.put(Answer(result, packed(run.file.parent) if sends else b""))
        self.place = place
        for name, results in place.earlier[self.lists].items():
            for found in results[len(begun[name].before) :]:
                begun[name].known(found)
        self.lists += 1
        return {name: work.outcome for name, work in begun.items()}


def packed(folder: Path) -> bytes:
    """The files of a folder, as a tar."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(folder, arcname=".")
        return file.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Writes the files of a tar to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(files)) as tar:
        tar.extractall(folder, filter="data")


class Remote:
    """A slot on a cluster: the processes of a run, and after a loss other ones.

    Attributes:
      where: nodes and devices of the processes.
    """

    def __init__(self, begin: Callable[[], list[Any]]):
        self.begin, self.processes = begin, list[Any]()
        self._renew()

    def _renew(self) -> None:
        for process in self.processes:
            ray_module().kill(process)
        self.where, self.processes = "", self.begin()
        coordinator = self.processes[0].address.remote()
        self.arriving = [process.ready.remote(coordinator) for process in self.processes]

    def ready(self, needed: Callable[[], bool]) -> bool:
        """Whether all processes have opened their data; waits for that while it is needed.

        It is not if several were lost before they had, one after the other.

        Raises:
          ConfigError: one cannot open them, or is not like the head.
        """
        until, left = time.monotonic() + 60 * MINUTES, TRIES
        while not self.where and needed() and left and time.monotonic() < until:
            done, _ = ray_module().wait(self.arriving, num_returns=len(self.arriving), timeout=POLL)
            try:
                found = [told(arrived) for arrived in done]
                if len(found) == len(self.processes):
                    nodes = ", ".join(environment["node"] for environment in found)
                    self.where = f"{nodes} ({found[0]['device']})"
                    if found[0]["private"]:
                        text = "%s does not see the workdir: its files are sent after each run"
                        logging.warning(text, self.where)
            except Lost as error:
                logging.warning("a process of the cluster did not start: %s", error)
                left -= 1
                self._renew()
        return bool(self.where)

    def do(
        self, run: Run, place: Place, stop: signals.Stop, report: Callable[[Progress], None]
    ) -> dict | None:
        """The result of a run, as of `work.do`; raises Lost, and starts other processes."""
        with stop.saving():  # they do
            try:
                answer = self._done(place, stop, report)
            except Lost:
                self._renew()
                raise
        if answer.files:
            unpack(answer.files, run.file.parent)
        return answer.result

    def _done(self, place: Place, stop: signals.Stop, report: Callable[[Progress], None]) -> Answer:
        first, asked, failed = self.processes[0], False, math.inf
        calls = [process.do.remote(place) for process in self.processes]
        reports, answers = first.reports.remote(), dict[Any, Answer]()
        while len(answers) < len(calls):
            waiting = [call for call in calls if call not in answers]
            for done in ray_module().wait([*waiting, reports], timeout=POLL)[0]:
                found = told(done)
                if done is not reports:
                    answers[done], found = found, found.reports
                    if (answers[done].result or {}).get("status") == "failed":
                        failed = min(failed, time.monotonic())
                else:
                    reports = first.reports.remote()
                for progress in found:
                    report(progress)
            if stop.signal is not None and not asked:
                for process in self.processes:
                    process.end.remote(stop.signal)
                asked = True
            if time.monotonic() > failed + distributed.HEARTBEAT_SECONDS:  # the others wait for it
                raise Lost("it failed in some of its processes, for which the others waited")
        found = [answers[call] for call in calls]
        return next((x for x in found if (x.result or {}).get("status") == "failed"), found[0])


def told(call: Any) -> Any:
    """What a call to a process of the cluster came to.

    Raises:
      Lost: the process is gone.
    """
    ray = ray_module()
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from None
    except ray.exceptions.RayError as error:
        detail = re.search(r"Worker exit detail: (.*?\.) ", " ".join(str(error).split()))
        raise Lost(detail[1] if detail else one_line(error)) from None


@contextlib.contextmanager
def slots(program: Callable[[Any], Any], config: Sweep, manifest: dict) -> Iterator[list[Remote]]:
    """A slot for each share of the cluster's devices that a run takes, once all have arrived.

    `program` calls `driver.opened`; `manifest` is what all runs depend on.

    Raises:
      ConfigError: Ray is not installed or not running; a node cannot see the data or the workdir,
        or is not like the head.
    """
    share = connected(config)
    begin = starter(program, config, manifest, share)
    count = share.slots * share.processes
    logging.info("%d processes start, as soon as the cluster has free devices", count)
    remotes = [Remote(begin) for _ in range(share.slots)]
    try:
        if not all([remote.ready(lambda: True) for remote in remotes]):
            fix = "others may have taken its devices, see `ray status`; or the log says why"
            raise ConfigError(f"cluster={config.cluster!r}: some processes did not start; {fix}")
        for where, number in Counter(remote.where for remote in remotes).items():
            logging.info("%d runs side by side on %s", number, where)
        yield remotes
    finally:
        for process in [process for remote in remotes for process in remote.processes]:
            ray_module().kill(process)


def starter(
    program: Callable[[Any], Any],
    config: Sweep,
    manifest: dict,
    share: Share,
) -> Callable[[], list[Any]]:
    """A function that starts the processes of a run, which take a share of the cluster."""
    modules = {"__mp_main__": "__main__", config_files.NAME: config_files.NAME}
    files = {name: getattr(sys.modules.get(of), "__file__", None) for name, of in modules.items()}
    start = Start(
        program,
        dataclasses.replace(config, cluster="", workers=0),
        same(manifest),
        os.getcwd(),
        sys.path,
        {name: file for name, file in files.items() if file},
    )
    ray, count = ray_module(), share.processes
    resources = dict(share.resources)
    options: dict[str, Any] = {
        "max_concurrency": 4,
        "runtime_env": {"env_vars": share.variables},
        "num_cpus": resources.pop("CPU", 0),
        "num_gpus": resources.pop("GPU", 0),
        "resources": resources,
    }
    kind = ray.remote(Host)

    def begin() -> list[Any]:
        if count == 1:
            return [kind.options(**options).remote(start, 0, 1)]
        group = ray.util.placement_group([share.resources] * count, strategy="STRICT_SPREAD")
        placed = [
            ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, rank)
            for rank in range(count)
        ]
        return [
            kind.options(**options, scheduling_strategy=where).remote(start, rank, count)
            for rank, where in enumerate(placed)
        ]

    return begin
