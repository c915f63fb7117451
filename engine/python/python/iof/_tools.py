"""Tools: programs that read the output of running jobs, push stdin and ask questions."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import enum
import json
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Self, TypedDict, TypeVar, Unpack, cast, overload

from . import _iof
from ._arguments import LAST_RANK, check, nanoseconds, number, optional_text, path, rank_list, seconds, text

#: Seconds between two attempts to find a job that begins later, and for which one may be announced before it begins.
_RETRY = 0.01
_JOB_WAIT = 5.0
_NOT_FOUND, _LOST_CONNECTION = -46, -61
_SHORT_KEYS = {"procs": "PROC_TABLE"}

_Item = TypeVar("_Item")


class Channel(enum.IntFlag):
    """An output channel of a rank, or a set of them."""

    STDOUT = 2
    STDERR = 4
    #: PMIx's channel for diagnostics: the descriptor in the variable IOF_STDDIAG_FD.
    STDDIAG = 8


STDOUT, STDERR, STDDIAG = Channel.STDOUT, Channel.STDERR, Channel.STDDIAG
OUTPUTS = STDOUT | STDERR | STDDIAG


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a stream that were lost."""

    nspace: str
    rank: int | None
    channel: Channel
    #: The number of bytes that the rank had written to the channel before these.
    offset: int
    lost: int


@dataclass(frozen=True, slots=True)
class End:
    """The end of a stream. produced = delivered + lost."""

    nspace: str
    rank: int | None
    channel: Channel
    #: "complete", "broken" (its node was lost, or its output was not read to its end) or "gone" (the engine has ended).
    state: str
    #: The number of bytes that the rank has written, as far as it is known.
    produced: int
    delivered: int
    lost: int
    #: The number of further bytes that the rank has written, at least.
    missing: int


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job and of all its streams."""

    nspace: str
    #: The exit code of the rank that failed first, 128 + n for signal n; 0 if none has failed; None if unknown.
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Missed:
    """Streams that are not delivered: the reader was slow and their job has been removed, or they had ended on other nodes.

    A stream that had ended has a report of its own, with the bytes behind its token of `resume`.
    """

    nspace: str
    #: The rank, or None for several.
    rank: int | None
    streams: int
    bytes: int


Event = Gap | End | JobEnd | Missed


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job of an engine."""

    nspace: str
    ranks: int
    #: The exit code of the rank that failed first, 0 if none has; None while the job runs or if unknown.
    exit_code: int | None
    command: str
    engine_pid: int
    socket: str | None


@dataclass(frozen=True, slots=True)
class PushReport:
    """The result of a push."""

    #: The number of bytes of the push.
    bytes: int
    #: The number of ranks that have received all of them.
    complete: int
    #: The other ranks, with the number of bytes that were written to their stdin.
    partial: dict[int, int]


class Selection(TypedDict, total=False):
    """The part of the output that `Tool.lines` and `Tool.batches` deliver."""

    job: str | None
    ranks: int | Iterable[int] | None
    channels: Channel
    from_: str
    tail: int | None
    since: float | datetime.datetime | datetime.timedelta | None
    offset: int | None
    until: float | datetime.datetime | datetime.timedelta | None
    follow: bool
    resume: Mapping[tuple[int, Channel], str] | None


class Part(NamedTuple):
    """The part of the output that a registration delivers."""

    channels: int
    position: str
    value: int
    until: int | None
    follow: bool
    resume: list[tuple[int, int, str]]


class Form(NamedTuple):
    """The form in which a registration returns output."""

    is_lines: bool
    has_events: bool


FORMS = {"lines": Form(True, False), "events": Form(True, True), "batches": Form(False, True)}


def failed(status: int, text: str) -> _iof.Error:
    error = _iof.Error(text)
    error.status = status
    return error


def close_all(readers: weakref.WeakSet[_iof.Reader]) -> None:
    while readers:
        readers.pop().close()


def _plain(value: Any) -> Any:
    """Returns the value of an answer. Processes are their jobs and ranks."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if key in ("proc", "source"):
            flat |= inner
        elif key == "channel":
            flat[key] = Channel[inner.upper()]
        elif key == "state":
            flat[key] = inner.lower()
        elif key != "run":
            flat[key] = _plain(inner)
    if flat.get("rank", 0) > LAST_RANK:
        flat["rank"] = None
    return flat


async def readable(descriptor: int, timeout: float | None) -> None:
    """Waits on the event loop until a descriptor is readable, or for a number of seconds. Needs no thread."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    # A duplicate: several tasks may wait for one descriptor, and it may be closed meanwhile.
    own = os.dup(descriptor)
    loop.add_reader(own, wake)
    timer = None if timeout is None else loop.call_later(timeout, wake)
    try:
        await ready
    finally:
        loop.remove_reader(own)
        os.close(own)
        if timer is not None:
            timer.cancel()


class Closing:
    """An object that is closed at the end of a `with` block."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Reader(Closing, Generic[_Item]):
    """An iterator over what a registration delivers, for `for` and for `async for`.

    Ends when the jobs have ended and everything was delivered. It is used by one thread or task at a
    time. `close()`, the end of a `with` block, or the end of its tool end it early.
    """

    __slots__ = ("_reader", "_taken")

    def __init__(self, reader: _iof.Reader) -> None:
        self._reader = reader
        self._taken = 0

    def __iter__(self) -> Iterator[_Item]:
        # The native iterator: a line costs no call of Python code.
        return self._reader

    def __next__(self) -> _Item:
        item: _Item = next(self._reader)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Item:
        self._taken += 1
        if self._taken % 64 == 0:
            # Other tasks take turns, however much there is to read.
            await asyncio.sleep(0)
        while (item := self._reader.try_next()) is None:
            descriptor, timeout, done = self._reader.waits()
            if done:
                raise StopAsyncIteration
            await readable(descriptor, timeout)
        return cast(_Item, item)

    def close(self) -> None:
        """Ends the registration. Batches that are exported stay readable."""
        self._reader.close()


class Lines(Reader[_Item]):
    """The lines of `Tool.lines` and `Job.lines`."""


class Batches(Reader[_Item]):
    """The batches of `Tool.batches`."""


def _part(
    ranks: object, channels: Any = OUTPUTS, from_: Any = "oldest", tail: Any = None, since: Any = None,
    offset: Any = None, until: Any = None, follow: Any = True, resume: Any = None,
) -> Part:  # fmt: skip
    """Checks the arguments of `Selection`."""
    check("channels", channels, Channel, "iof.Channel")
    text("from_", from_)
    if from_ not in ("oldest", "newest"):
        raise ValueError(f"from_: '{from_}' is neither 'oldest' nor 'newest'")
    check("follow", follow, bool, "a bool")
    given = {"from_": from_ != "oldest", "tail": tail is not None, "since": since is not None}
    given |= {"offset": offset is not None, "resume": resume is not None}
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ValueError(f"{names[1]}: cannot be combined with {names[0]}")
    value = 0
    if tail is not None:
        from_, value = "tail", number("tail", tail)
    elif since is not None:
        from_, value = "since", nanoseconds("since", since)
    elif offset is not None:
        if not isinstance(ranks, int) or channels.bit_count() != 1:
            raise ValueError("offset: applies to one stream: name one rank and one channel")
        from_, value = "offset", number("offset", offset)
    tokens = []
    if resume is not None:
        check("resume", resume, Mapping, "a dict of tokens by (rank, channel)")
        for (rank, channel), token in resume.items():
            check("resume", channel, Channel, "iof.Channel")
            text("resume", token)
            tokens.append((number("resume", rank, high=LAST_RANK), int(channel), token))
    end = None if until is None else nanoseconds("until", until)
    return Part(int(channels), from_, value, end, follow, tokens)


class Tool(Closing):
    """A connection to an engine. Made by `iof.attach`.

    A tool and its readers belong to the process that opened them: in a child after `os.fork()`, each
    call raises RuntimeError. Two threads must not use one tool, or one reader, at the same time.
    """

    def __init__(self, native: _iof.Tool, job: str | None = None) -> None:
        self._native = native
        self._job = job
        self._readers: weakref.WeakSet[_iof.Reader] = weakref.WeakSet()

    @property
    def engine_pid(self) -> int:
        """The pid of the engine's process."""
        return self._native.engine_pid

    @overload
    def lines(self, *, events: Literal[False] = False, **part: Unpack[Selection]) -> Lines[_iof.Line]: ...
    @overload
    def lines(self, *, events: bool, **part: Unpack[Selection]) -> Lines[_iof.Line | Event]: ...
    def lines(self, *, events: bool = False, **part: Unpack[Selection]) -> Lines[Any]:
        """Registers for the lines of a job, beginning with those that are cached.

        job: the job, if the tool was not attached by its name and the engine has several.
        ranks, channels: the ranks and channels to read; by default all.
        from_: "oldest", the oldest cached byte, or "newest", the next that is read.
        tail: the number of cached lines of each stream to begin with.
        since, until: the times of the first and of the last read to deliver: seconds since 1970, a
            datetime, or for `since` a timedelta before now.
        offset: the offset in bytes at which one stream begins.
        follow: False ends after what is cached now.
        resume: the last `Line.token` of each (rank, channel): these streams begin behind it.
        events: True returns also `Gap`, `End`, `JobEnd` and `Missed` objects. Without them, a loss is the
            attribute `lost` of the next line, and output that is missing at the end is an `iof.Error`.
        """
        check("events", events, bool, "a bool")
        return Lines(self._open("events" if events else "lines", **part))

    def batches(self, **part: Unpack[Selection]) -> Batches[_iof.Batch | Event]:
        """Registers as `lines` does, and returns `Batch` objects: bytes in the engine's shared memory,
        without a copy and not divided into lines; and `Gap`, `End`, `JobEnd` and `Missed` objects.

        Each batch is given back when the next one is asked for. This raises BufferError while a memoryview
        of the batch, or a slice of one, exists: copy with `bytes()` what is to be kept.
        """
        return Batches(self._open("batches", **part))

    def _open(self, form: str, job: Any = None, ranks: Any = None, **part: Any) -> _iof.Reader:
        selected = _part(ranks, **part)
        reader = self._native.open(self._target(job, ranks), selected, FORMS[form])
        self._readers.add(reader)
        return reader

    def _target(self, job: str | None, ranks: int | Iterable[int] | None) -> tuple[str, int, list[int] | None]:
        """Returns the name and the run of the job, that of the tool or the only one by default, and the ranks. Waits
        for a job that the engine has announced."""
        job, selected = optional_text("job", job) or self._job, rank_list(ranks)
        deadline = time.monotonic() + _JOB_WAIT
        while True:
            try:
                found = self._namespaces(job)
            except _iof.Error as error:
                if error.status == _LOST_CONNECTION:
                    raise
                found = []
            if len(found) > 1:
                raise ValueError("job: the engine has several jobs: name one of them")
            if found:
                return found[0]["nspace"], found[0]["run"], selected
            if time.monotonic() >= deadline:
                raise failed(_NOT_FOUND, f"the engine has no job {job}" if job else "the engine has no job")
            time.sleep(_RETRY)

    def push(
        self,
        data: bytes | bytearray | memoryview,
        *,
        job: str | None = None,
        ranks: int | Iterable[int] | None = None,
        end: bool = False,
    ) -> PushReport:
        """Pushes bytes to the stdin of ranks. Blocks until each rank's pipe has them, or can take no more.

        end: True closes the ranks' stdin after the bytes.
        """
        check("data", data, (bytes, bytearray, memoryview), "bytes")
        check("end", end, bool, "a bool")
        size, complete, partial = self._native.push(self._target(job, ranks), bytes(data), end)
        return PushReport(size, complete, partial)

    def signal(self, signal: int, *, job: str | None = None, ranks: int | Iterable[int] | None = None) -> int:
        """Sends a signal to ranks and their process groups. Returns the number that it was sent to."""
        return self._native.signal(self._target(job, ranks), number("signal", signal, 1, 31))

    def query(self, *keys: str, job: str | None = None) -> dict[str, Any]:
        """Asks the engine for values: "namespaces", "procs", "stats", the name of an attribute as `iof
        query` takes it, or a key with a dot. Keys without an answer are missing in the result. "procs"
        and "stats" are lists of dicts.
        """
        known = _iof.query_keys()
        wanted = {}
        for key in keys:
            text("keys", key)
            long = _SHORT_KEYS.get(key, key.upper().replace("-", "_").removeprefix("PMIX_QUERY_"))
            wanted[known.get(long, key)] = key
            if "." not in key and long not in known:
                raise ValueError(f"keys: unknown key '{key}'")
        if not wanted:
            raise ValueError("keys: expected at least one key")
        found = json.loads(self._native.query(list(wanted), optional_text("job", job)))
        # A value has one key, its type.
        return {wanted.get(key, key): _plain(*value.values()) for key, value in found}

    def jobs(self) -> list[JobInfo]:
        """Returns the jobs of the engine, also those that have ended."""
        return self._jobs(None)

    def _jobs(self, socket: str | None) -> list[JobInfo]:
        return [
            JobInfo(job["nspace"], job["procs"], job["exit_code"], job["command"], self.engine_pid, socket)
            for job in self._namespaces(None)
        ]

    def _namespaces(self, job: str | None) -> list[dict[str, Any]]:
        answer = json.loads(self._native.query([_iof.query_keys()["NAMESPACE_INFO"]], job))
        return [job for _key, value in answer for job in value["Jobs"]]

    def close(self) -> None:
        """Closes the connection and the readers. Batches that are exported stay readable."""
        close_all(self._readers)
        self._native.close()


def attach(
    job: str | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
    pid: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    name: str = "python",
    wait: float | None = None,
) -> Tool:
    """Attaches a tool to the engine that has the job, or that listens at `socket`, or whose pid is given;
    without these, to the only engine of the user.

    directory: the directory of the engines' sockets, if it is not the default.
    name: the name of the tool in `iof top` and `iof query`.
    wait: the number of seconds to wait for a job that begins later; by default it must exist.
    """
    text("name", name)
    if pid is not None:
        pid = number("pid", pid, 1, 2**31 - 1)
    paths = [path("socket", socket), path("directory", directory)]
    deadline = time.monotonic() + (0 if wait is None else seconds("wait", wait))
    while True:
        try:
            return Tool(_iof.Tool(optional_text("job", job), paths[0], pid, paths[1], name), job)
        except _iof.Error:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY)


def jobs(directory: str | os.PathLike[str] | None = None) -> list[JobInfo]:
    """Returns the jobs of all engines of this user on this node. Engines that end meanwhile, or belong to
    another user, are left out."""
    found = []
    for socket in map(os.fspath, _iof.engines(path("directory", directory))):
        with contextlib.suppress(_iof.Error), Tool(_iof.Tool(None, socket, None, None, "python")) as tool:
            found += tool._jobs(socket)
    return found
