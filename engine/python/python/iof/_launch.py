"""Launchers: jobs of an engine in this process, and processes that somebody else starts."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import shlex
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple, Self, TypedDict, Unpack

from . import _iof
from ._arguments import LAST_RANK, check, descriptor, number, optional_text, path, seconds, text, word, wrong_type
from ._tools import FORMS, Batches, Closing, Event, Form, Lines, close_all, failed, readable

_numbers = itertools.count(1)
#: The status of output that could not be written.
_OPERATION_FAILED = -3331
#: The longest time in seconds for which a signal is not noticed that arrives just before a wait.
_SIGNAL_CHECK = 1.0


def command() -> str:
    """Returns the path of the command `iof` that was installed with this package."""
    return os.path.join(sysconfig.get_path("scripts"), "iof")


@dataclass(frozen=True, slots=True)
class App:
    """A program of a job, and the number of ranks that run it."""

    args: Sequence[str | os.PathLike[str]]
    ranks: int = 1
    #: Variables that are added to the environment of this process.
    env: Mapping[str, str] = field(default_factory=dict)
    #: The working directory of the ranks; None for that of this process.
    cwd: str | os.PathLike[str] | None = None
    #: True makes stdout and stderr one pipe, which arrives as stdout.
    merge_stderr: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.args, (str, bytes)) or not isinstance(self.args, Sequence):
            raise wrong_type("args", "a list of the program and its arguments", self.args)
        if not self.args:
            raise ValueError("args: expected a program")
        number("ranks", self.ranks, 1, 2**31)
        check("env", self.env, Mapping, "a dict")
        for name, items, types in (("args", self.args, (str, os.PathLike)), ("env", [*self.env, *self.env.values()], str)):
            for item in items:
                word(name, item, types, "strings")
        if wrong := [name for name in self.env if not name or "=" in name]:
            raise ValueError(f"env: {wrong[0]!r} is not the name of a variable")
        path("cwd", self.cwd)
        check("merge_stderr", self.merge_stderr, bool, "a bool")


@dataclass(frozen=True, slots=True)
class Adopted:
    """A process that somebody else starts, with the reading ends of its pipes: files or descriptors. They
    are duplicated; this process must not read from them any longer."""

    rank: int
    stdout: IO[Any] | int | None = None
    stderr: IO[Any] | int | None = None
    stddiag: IO[Any] | int | None = None
    #: The pid that tools show; 0 if it is not known.
    pid: int = 0
    executable: str = ""
    #: True if the engine waits for the process, a child of this one, and sends it the signals of its job.
    #: Otherwise its exit is reported by `Job.report_exit`: a Popen object waits itself.
    reap: bool = False

    def __post_init__(self) -> None:
        number("rank", self.rank, high=LAST_RANK)
        _ = self.files  # Which checks them.
        number("pid", self.pid, high=2**31 - 1)
        text("executable", self.executable)
        check("reap", self.reap, bool, "a bool")

    @property
    def files(self) -> list[tuple[int, int]]:
        given = {"stdout": (2, self.stdout), "stderr": (4, self.stderr), "stddiag": (8, self.stddiag)}
        return [(bits, descriptor(name, file)) for name, (bits, file) in given.items() if file is not None]


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a job."""

    #: The exit code of the rank that failed first, 128 + n for signal n; 0 if none has failed.
    exit_code: int
    #: The exit code of each rank, 128 + n for signal n; None if it is unknown. A rank is missing if its end is not known.
    exits: dict[int, int | None]
    #: Why the engine has ended the job: "timeout", "failure" (of a rank), "abort" (MPI_Abort) or "request".
    ended_early: str | None
    #: The number of bytes of output that a drop policy has kept from being printed, in all outputs.
    lost: int = 0


class _Options(NamedTuple):
    stdin: str
    timeout: float | None
    kill_on_bad_exit: bool
    hosts: str | None
    rsh: str | None
    agent: str


def _wanted(output: str | None, style: str) -> tuple[Form | None, str | None]:
    if output not in (*FORMS, "print", None):
        raise ValueError(f"output: {output!r} is not 'lines', 'events', 'batches', 'print' or None")
    text("style", style)
    if style and output != "print":
        raise ValueError("style: applies to output='print' only, which `run` has without on_line")
    return FORMS.get(output or ""), style if output == "print" else None


class RunOptions(TypedDict, total=False):
    """The options of `Engine.launch` that `run` has, too."""

    name: str | None
    style: str
    stdin: str
    timeout: float | None
    kill_on_bad_exit: bool
    hosts: str | None
    rsh: str | None


class JobOptions(RunOptions, total=False):
    """The options of `Engine.launch`."""

    output: str | None


class Job:
    """A job of an `Engine`."""

    def __init__(self, native: _iof.Job, reader: _iof.Reader | None, engine: Engine) -> None:
        self._native = native
        self._reader = reader
        self._engine = engine  # It lives as long as its jobs.
        if reader is not None:
            engine._readers.add(reader)

    @property
    def nspace(self) -> str:
        """The name of the job."""
        return self._native.nspace

    @property
    def pids(self) -> list[int]:
        """The pids of the ranks."""
        return self._native.pids

    def lines(self) -> Lines[Any]:
        """Returns the lines of the ranks, for `for` and `async for`. Nothing is lost: ranks wait while their
        caches are full and the lines are not read. Needs output="lines" or "events"."""
        return Lines(self._take())

    def batches(self) -> Batches[_iof.Batch | Event]:
        """Returns the output as `Tool.batches` does, without loss. Needs output="batches"."""
        return Batches(self._take())

    def _take(self) -> _iof.Reader:
        reader, self._reader = self._reader, None
        if reader is None:
            raise ValueError("output: the output of this job was not asked for, or is read already")
        return reader

    def signal(self, signal: int) -> int:
        """Sends a signal to the ranks and their process groups. Returns the number it was sent to."""
        return self._native.signal(number("signal", signal, 1, 31))

    def end(self) -> None:
        """Ends the job: its ranks receive SIGTERM, and SIGKILL two seconds later. Does not wait."""
        self._native.fail()

    def report_exit(self, rank: int, returncode: int | None) -> bool:
        """Reports the exit of an adopted process, with the value of `Popen.returncode`, or None if it is not
        known. Returns False if it was reported before, or the engine waits for the process."""
        if returncode is not None:
            number("returncode", returncode, -64, 255)
        return self._native.report_exit(number("rank", rank, high=2**32 - 1), returncode)

    def remove(self) -> bool:
        """Removes a job that has ended from its engine, with its cached output, which tools can read until
        then. Returns False if it has not ended. An engine that runs many jobs should remove them."""
        return self._native.remove()

    async def wait(self) -> Result:
        """Waits until the ranks have exited and their output has ended. Output that is not being read, by
        `lines`, is discarded."""
        result, descriptor = self._end()
        while result is None:
            await readable(descriptor, None)
            result, _ = self._end()
        return result

    def join(self) -> Result:
        """Blocks as `wait` waits."""
        result, descriptor = self._end()
        while result is None:
            select.select([descriptor], [], [], _SIGNAL_CHECK)
            result, _ = self._end()
        return result

    def _end(self) -> tuple[Result | None, int]:
        """Returns the end of the job, or before it a descriptor that is readable then."""
        if self._reader is not None:
            self._take().close()
        ended, descriptor = self._native.end()
        if ended is None:
            return None, descriptor
        code, exits, early, lost, error = ended
        if error is not None:
            raise failed(_OPERATION_FAILED, error)
        return Result(code, dict(sorted(exits)), early, lost), descriptor


class Engine(Closing):
    """An engine in this process, for `async with` and `with`. At the end of the block, the jobs that it has
    started are ended, and tools receive what is left for up to five seconds.

    cache_size: the size of the cache of each stream in bytes, at least 16,384.
    drop: what happens when a cache is full: "none" (the rank waits), "newest" or "oldest".
    tools: False starts an engine that no tool of another process finds. Of several engines of a process, one
        can be found.
    directory: the directory of the engine's socket, if it is not the default.
    guardian: the path of the command `iof` (`iof.command()`), if a process of it is to end the ranks when
        this process is killed.
    """

    def __init__(
        self,
        *,
        cache_size: int | None = None,
        drop: str = "none",
        tools: bool = True,
        directory: str | os.PathLike[str] | None = None,
        guardian: str | os.PathLike[str] | None = None,
    ) -> None:
        if cache_size is not None:
            number("cache_size", cache_size, 16384, 2**30)
        text("drop", drop)
        check("tools", tools, bool, "a bool")
        paths = (path("directory", directory), path("guardian", guardian))
        self._native = _iof.Engine(cache_size, drop, tools, *paths)
        self._readers: weakref.WeakSet[_iof.Reader] = weakref.WeakSet()

    @property
    def socket(self) -> str | None:
        """The path of the socket at which tools find the engine."""
        return path("socket", self._native.socket)

    async def spawn(self, *apps: App, **options: Unpack[JobOptions]) -> Job:
        """Starts a job as `launch` does, without blocking the event loop."""
        return await asyncio.to_thread(self.launch, *apps, **options)

    def launch(
        self,
        *apps: App,
        name: str | None = None,
        output: str | None = "lines",
        style: str = "",
        stdin: str = "null",
        timeout: float | None = None,
        kill_on_bad_exit: bool = False,
        hosts: str | None = None,
        rsh: str | None = None,
    ) -> Job:
        """Starts a job. Blocks until its ranks run.

        name: the name by which tools find it.
        output: "lines" and "events" are for `Job.lines`, see `Tool.lines`; "batches" is for `Job.batches`;
            "print" writes to stdout and stderr of this process; None leaves the output to tools.
        style: the words of `iof run --output` for "print", such as "tag", "json" or "dir=logs".
        stdin: "null", "inherit" (rank 0 reads that of this process) or "pipe" (for `Tool.push`).
        timeout: the number of seconds after which the job is ended.
        kill_on_bad_exit: True ends the job when a rank fails in any way, not only by a signal.
        hosts: the nodes of the ranks with their slots, such as "a:2,b:2", in which each has this package at the
            path that it has here; by default, and for this node alone, this process starts the ranks.
        rsh: the command that starts a process on a node, as `iof run --rsh` takes it; by default ssh.
        """
        for app in apps:
            check("apps", app, App, "iof.App")
        if not apps:
            raise ValueError("apps: expected at least one iof.App")
        text("stdin", stdin)
        check("kill_on_bad_exit", kill_on_bad_exit, bool, "a bool")
        if hosts is not None and stdin == "inherit":
            raise ValueError("stdin: ranks of hosts do not inherit it: expected 'null' or 'pipe'")
        if hosts is None and rsh is not None:
            raise ValueError("rsh: applies to hosts only")
        options = _Options(
            stdin, None if timeout is None else seconds("timeout", timeout), kill_on_bad_exit, optional_text("hosts", hosts),
            None if rsh is None else word("rsh", rsh, str, "a command or None"), f"exec {shlex.quote(command())} agent",
        )  # fmt: skip
        return Job(*self._native.spawn(self._name(name), list(apps), _wanted(output, style), options), self)

    def adopt(
        self,
        ranks: Iterable[Adopted],
        *,
        name: str | None = None,
        output: str | None = "lines",
        style: str = "",
    ) -> Job:
        """Makes a job of processes that somebody else starts and whose pipes end in this process."""
        ranks = list(check("ranks", ranks, Iterable, "several of iof.Adopted"))
        for rank in ranks:
            check("ranks", rank, Adopted, "iof.Adopted")
        return Job(*self._native.adopt(self._name(name), ranks, _wanted(output, style)), self)

    @staticmethod
    def _name(name: str | None) -> str:
        return f"python-{os.getpid()}-{next(_numbers)}" if name is None else text("name", name)

    def close(self) -> None:
        """Ends the jobs that run and the engine, and blocks meanwhile."""
        close_all(self._readers)
        self._native.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self.close)


def run(
    args: Sequence[str | os.PathLike[str]] | App | Sequence[App],
    *,
    ranks: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    on_line: Callable[[_iof.Line], object] | None = None,
    cache_size: int | None = None,
    drop: str = "none",
    tools: bool = True,
    **options: Unpack[RunOptions],
) -> Result:
    """Runs a job and returns its end. Blocks meanwhile; ranks wait while their output can't be written.

    args: the program and its arguments, or the apps of the job.
    on_line: is called with each `Line` in this thread; without it, the output is written to stdout and stderr
        of this process. An exception of it ends the job, and is raised when the ranks have ended.
    stdin: see `Engine.launch`; by default "inherit", and "null" with `hosts`.
    The other arguments are those of `App` and `Engine`, and the options are those of `Engine.launch`: name, style,
    timeout, kill_on_bad_exit, hosts and rsh.
    """
    given: Any = [args] if isinstance(args, App) else args
    if isinstance(given, Sequence) and given and all(isinstance(app, App) for app in given):
        apps = list(given)
        if ranks != 1 or env is not None or cwd is not None:
            raise ValueError("args: each iof.App has its own ranks, env and cwd")
    else:
        apps = [App(given, ranks, {} if env is None else env, cwd)]
    options.setdefault("stdin", "inherit" if options.get("hosts") is None else "null")
    if on_line is not None and not callable(on_line):
        raise wrong_type("on_line", "a callable", on_line)
    for stream in (sys.stdout, sys.stderr):
        # What this process has written precedes what the ranks write.
        if stream is not None:
            stream.flush()
    with Engine(cache_size=cache_size, drop=drop, tools=tools) as engine:
        output = "print" if on_line is None else "lines"
        job = engine.launch(*apps, output=output, **options)
        if on_line is not None:
            with job.lines() as lines:
                for line in lines:
                    on_line(line)
        return job.join()
