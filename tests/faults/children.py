"""What is called first in a process of the trainer: its devices, and the faults put into it."""

import contextlib
import os
import signal
import time

import jax

from experiments.running.process import distributed
from pe_jax.training.step import Trainer


def devices() -> None:
    """Programs are compiled fast and kept, and a silent process counts as dead in half the time."""
    distributed.HEARTBEAT_SECONDS //= 2
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(os.environ.get("DEVICES", "1")))
    jax.config.update("jax_compilation_cache_dir", os.environ["CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def full_disk() -> None:
    """The disk is full for one kind of file, named in FULL, from the fourth step on."""
    devices()
    put, count = Trainer.put, iter(range(1, 100))

    def fills(self, batch):
        if next(count) == 4:
            for handle in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):  # that of listdir
                    if os.environ["FULL"] in os.readlink(f"/proc/self/fd/{handle}"):
                        os.dup2(os.open("/dev/full", os.O_WRONLY), int(handle))
        return put(self, batch)

    Trainer.put = fills


def boom() -> None:
    """Raises in the second process, while its fourth step is under way."""
    devices()
    put, count = Trainer.put, iter(range(1, 100))

    def raises(self, batch):
        if next(count) == 4 and jax.process_index() == 1:
            raise ArithmeticError("boom")
        return put(self, batch)

    Trainer.put = raises


def interrupted() -> None:
    """The second process gets ctrl-C while it compiles."""
    devices()
    compile = Trainer.compile

    def signalled(self, *shape):
        if jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3)  # until both know of it
        return compile(self, *shape)

    Trainer.compile = signalled


def impatient() -> None:
    """Waits for the other hosts for three seconds."""
    devices()
    distributed.CONNECT_SECONDS = 3
