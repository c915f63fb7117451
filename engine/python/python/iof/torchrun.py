"""Logs of torchrun by an engine in its agent: `torchrun --logs-specs iof ...`.

Each stream of a worker is a pipe that the engine reads. A thread writes whole lines to the console, and the bytes to the
files of torch's default specs. Each attempt is a job, which `iof pull`, `iof top` and `iof query` find.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import inspect
import os
import re
import select
import shutil
import socket
import string
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest

from . import __version__
from ._iof import Batch
from ._launch import Adopted, Engine, Job
from ._tools import STDERR, STDOUT, Channel, End, Gap

#: The longest line that is written to the console in one piece, in bytes.
MAX_LINE = 1 << 20
#: Seconds for which streams may stay open when the workers of an attempt have ended.
GRACE = 5.0
#: The parameters that this class passes to torch's.
_PARAMETERS = ["log_dir", "redirects", "tee", "local_ranks_filter"]


def _check_torch() -> None:
    parameters = list(inspect.signature(DefaultLogsSpecs).parameters)
    fields = set(inspect.signature(LogsDest).parameters)
    if parameters[:4] != _PARAMETERS or not {"stdouts", "stderrs", "tee_stdouts", "tee_stderrs"} <= fields:
        raise RuntimeError(f"iof {__version__} does not know the logs specs of torch {torch.__version__}")
    if any(re.match("--?duplicate[-_]std", argument) for argument in sys.argv):
        raise ValueError("--duplicate-stdout-filters and --duplicate-stderr-filters read files while they are written: "
                         "use the default logs specs with them, or iof pull")  # fmt: skip


class _Sink:
    """Where the bytes of one stream go."""

    def __init__(self, path: str, console: int | None, prefix: str) -> None:
        self.path = path
        self.file = open(path, "wb", buffering=0) if path else None
        self.console = console
        self.prefix = prefix.encode()
        self.open_line = b""

    def write(self, data: bytes) -> None:
        if self.file is not None:
            try:
                _write(self.file.fileno(), data)
            except OSError as error:
                self.file = None
                _tell(f"{self.path}: {error.strerror}: the rest is not written to it")
        if self.console is not None:
            data = self.open_line + data
            end = data.rfind(b"\n") + 1 or (len(data) if len(data) >= MAX_LINE else 0)
            self.open_line = data[end:]
            self.show(data[:end])

    def show(self, lines: bytes) -> None:
        """Writes whole lines to the console, each with its prefix."""
        if lines and self.console is not None:
            body = lines.removesuffix(b"\n")
            try:
                _write_lines(self.console, self.prefix + body.replace(b"\n", b"\n" + self.prefix) + b"\n")
            except OSError as error:
                name = {1: "stdout", 2: "stderr"}.get(self.console, "the console")
                self.console = None
                # A reader that has gone, such as `head`, wants no more.
                if error.errno != errno.EPIPE:
                    whose = self.prefix.decode().strip() or "a worker"
                    _tell(f"{name}: {error.strerror}: the rest of {whose} is not written to it")

    def end(self) -> None:
        self.show(self.open_line)
        if self.file is not None:
            self.file.close()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_lines(descriptor: int, lines: bytes) -> None:
    """Writes whole lines in pieces that a pipe takes at once, so that messages of torch come between lines."""
    start = 0
    while start < len(lines):
        end = lines.rfind(b"\n", start, start + select.PIPE_BUF) + 1 or lines.index(b"\n", start) + 1
        _write(descriptor, lines[start:end])
        start = end


def _tell(message: str) -> None:
    """Writes a message to stderr. If that has failed, e.g. on the same full disk, the output of the workers goes on."""
    with contextlib.suppress(OSError):
        _write(2, os.fsencode(f"iof: {message}\n"))


@dataclass
class _Attempt:
    """The job of one attempt."""

    job: Job
    sinks: dict[tuple[int, Channel], _Sink]
    writing: list[int]
    fifos: list[str]
    #: Set when the output is written. Not `Thread.join`: in Python 3.11, a thread counts as ended once a signal has
    #: interrupted that.
    is_written: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Starts a daemon that writes the output: the interpreter would wait for another thread before `_close` is called."""
        threading.Thread(target=self.write, name="iof-torchrun", daemon=True).start()

    def write(self) -> None:
        try:
            self.write_until_end()
        finally:
            self.is_written.set()

    def write_until_end(self) -> None:
        """Writes the output until each stream has ended."""
        left = set(self.sinks)
        for item in self.job.batches():
            if isinstance(item, Batch):
                self.sinks[item.rank or 0, item.channel].write(bytes(item))
            elif isinstance(item, Gap):
                _tell(f"{item.lost} bytes of rank {item.rank} are lost")
            elif isinstance(item, End) and (item.rank or 0, item.channel) in left:
                self.sinks[item.rank or 0, item.channel].end()
                left.discard((item.rank or 0, item.channel))
                if not left:
                    return

    def finish(self) -> None:
        """Ends the attempt, whose workers have ended."""
        while self.writing:
            os.close(self.writing.pop())
        while self.fifos:
            shutil.rmtree(os.path.dirname(self.fifos.pop()))
        self.is_written.wait(GRACE)
        ranks = {rank for rank, _channel in self.sinks}
        for rank in ranks:
            # A process that a worker has left holds a pipe.
            self.job._native.close(rank)
            self.job.report_exit(rank, None)
        self.is_written.wait()


class LogsSpecs(DefaultLogsSpecs):  # type: ignore[misc, unused-ignore]
    """The destinations of torch's default specs, by pipes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        _check_torch()
        super().__init__(*args, **options)
        self._engine: Engine | None = None
        self._attempt: _Attempt | None = None
        # The job of the attempt before, whose output stays cached for tools.
        self._ended: Job | None = None

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self._finish()
        default = super().reify(envs)
        if self._engine is None:
            self._engine = Engine()
            atexit.register(self._close)
        adopted: dict[int, dict[str, Any]] = {}
        attempt = _Attempt(None, {}, [], [])  # type: ignore[arg-type]
        streams = ((STDOUT, default.stdouts, default.tee_stdouts), (STDERR, default.stderrs, default.tee_stderrs))
        for channel, paths, tees in streams:
            for local_rank, path in paths.items():
                if path == os.devnull:
                    continue
                env = envs[local_rank]
                rank = int(env["RANK"])
                is_shown = not path or tees.get(local_rank) == path
                console = (1 if channel == STDOUT else 2) if is_shown else None
                attempt.sinks[rank, channel] = _Sink(path, console, _prefix(env) if path else "")
                reading, writing, paths[local_rank] = _pipe()
                attempt.writing.append(writing)
                attempt.fifos += [] if paths[local_rank].startswith("/proc/") else [paths[local_rank]]
                adopted.setdefault(rank, {})[channel.name.lower()] = reading  # type: ignore[union-attr]
        if not adopted:
            return default
        env = next(iter(envs.values()))
        run = re.sub(r"[/,\s\x00-\x1f]", "_", env.get("TORCHELASTIC_RUN_ID", "none"))
        name = f"torch-{run}-{env.get('GROUP_RANK', '0')}-{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        attempt.job = self._engine.adopt(
            [Adopted(rank, **files, executable="torchrun worker") for rank, files in adopted.items()], name=name, output="batches"
        )
        for files in adopted.values():
            for reading in files.values():
                os.close(reading)
        attempt.start()
        self._attempt = attempt
        # Without files to read, torch has no threads for them.
        default.tee_stdouts, default.tee_stderrs = {}, {}
        return default

    def _finish(self) -> None:
        if self._attempt is not None:
            self._attempt.finish()
            if self._ended is not None:
                self._ended.remove()
            self._ended, self._attempt = self._attempt.job, None

    def _close(self) -> None:
        """Writes what is left when the workers have ended. Python ignores exceptions here: one signal is ignored, and another
        one ends the process, so that its exit code is not 0."""
        signals = (Exception, KeyboardInterrupt)
        with contextlib.suppress(*signals):
            self._finish()
        try:
            self._finish()
        except signals:
            _tell("interrupted: the rest of the output is not written")
            os._exit(1)
        with contextlib.suppress(*signals):
            if self._engine is not None:
                self._engine.close()


def _prefix(env: dict[str, str]) -> str:
    """Returns the beginning of each line of a worker on the console."""
    template = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${rank}]:")
    values = {
        "role_name": env.get("ROLE_NAME", ""),
        "rank": env["RANK"],
        "local_rank": env.get("LOCAL_RANK", ""),
        "node": env.get("GROUP_RANK", ""),
        "hostname": socket.gethostname(),
    }
    return string.Template(template).safe_substitute(values)


def _pipe() -> tuple[int, int, str]:
    """Returns the ends of a pipe, and the path by which torch opens the writing end."""
    reading, writing = os.pipe()
    path = f"/proc/{os.getpid()}/fd/{writing}"
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        os.close(reading)
        os.close(writing)
        # tempfile makes the folder with mode 0700.
        path = os.path.join(tempfile.mkdtemp(prefix="iof-"), "stream")
        os.mkfifo(path, 0o600)
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(path, os.O_WRONLY)
    return reading, writing, path
