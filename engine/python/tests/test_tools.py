"""Tools: lines, batches, positions, requests."""

import asyncio
import datetime
import os
import signal
import sys
import threading
import time

import iof
import pytest
from conftest import until


def take(reader, count):
    return [next(reader) for _ in range(count)]


def cached(tool, total):
    """Waits until the engine has read `total` bytes."""
    until(lambda: sum(stream["produced"] for stream in tool.query("stats")["stats"]) == total)


def test_a_line_has_its_source_its_place_and_its_time(job):
    before = time.time()
    started = job("echo one; printf 'two\\377' >&2", 2)
    with iof.attach(started.name, wait=30) as tool:
        lines = tool.lines(ranks=1)
        started.end()
        found = {line.channel: line for line in lines}
    out, err = found[iof.STDOUT], found[iof.STDERR]
    assert (out.rank, out.nspace, out.data, out.text, out.offset, out.lost) == (1, started.name, b"one", "one", 0, 0)
    assert (err.data, err.text, err.ends, out.ends) == (b"two\xff", "two\ufffd", False, True)
    assert before < out.time < time.time() and out.time_ns == pytest.approx(out.time * 1e9)
    assert started.name in repr(out) and "one" in repr(out)


def test_the_choice_of_an_engine_is_asked_for_by_the_arguments_of_attach(job, tmp_path):
    started = [job("", 1, "--rendezvous-dir", str(tmp_path)) for _ in range(2)]
    until(lambda: len(iof.jobs(tmp_path)) == 2)
    with pytest.raises(iof.Error) as several:
        iof.attach(directory=tmp_path)
    [end.end() for end in started]
    lines = str(several.value).split("\n")
    assert lines[0] == "2 engines are running: choose one with pid or job"
    assert {f"  pid {end.process.pid}  (job {end.name}" for end in started} == {line.split(",")[0] for line in lines[1:]}
    with pytest.raises(iof.Error, match="start one, or choose another directory with directory$"):
        iof.attach(directory=tmp_path / "..")


def test_lines_are_read_ahead_within_a_limit(job):
    started = job("yes | head -n 1000000", 1, "--cache-size", "4M")
    with iof.attach(started.name, wait=30) as tool:
        cached(tool, 2_000_000)
        before = sys.getallocatedblocks()
        lines = iter(tool.lines(follow=False))
        # Each line is two blocks of memory.
        assert next(lines).data == b"y" and sys.getallocatedblocks() - before < 200_000
        assert [line.offset for line in lines] == list(range(2, 2_000_000, 2))


def test_ranks_and_channels_are_selected(job):
    started = job("echo out $IOF_RANK; echo err $IOF_RANK >&2", 4)
    with iof.attach(started.name, wait=30) as tool:
        lines = tool.lines(ranks=[1, 3], channels=iof.STDERR)
        started.end()
        assert sorted(line.data for line in lines) == [b"err 1", b"err 3"]


def test_events_are_the_ends_of_streams_and_of_the_job(job):
    started = job("trap 'exit 3' EXIT; printf abc")
    with iof.attach(started.name, wait=30) as tool:
        events = tool.lines(channels=iof.STDOUT, events=True)
        started.end()
        items = list(events)
    line, end, job_end = items
    assert (line.data, line.ends) == (b"abc", False)
    assert (end.state, end.produced, end.delivered, end.lost, end.missing) == ("complete", 3, 3, 0, 0)
    assert (job_end.nspace, job_end.exit_code) == (started.name, 3)


@pytest.mark.parametrize("form", ["lines", "batches"])
def test_a_late_tool_accounts_for_each_byte(job, form):
    started = job("seq 1 500000")
    with iof.attach(started.name, wait=30) as tool:
        produced = sum(len(str(number)) + 1 for number in range(1, 500001))
        cached(tool, produced)
        reader = tool.lines(events=True) if form == "lines" else tool.batches()
        started.end()
        delivered = lost = 0
        for item in reader:
            if isinstance(item, iof.Line):
                delivered += len(item.data) + item.ends
            elif isinstance(item, iof.Batch):
                delivered += len(item)
            elif isinstance(item, iof.Gap):
                assert item.offset == 0 and delivered == 0
                lost += item.lost
        assert lost > 0 and delivered + lost == produced


def test_what_is_lost_is_an_attribute_of_the_next_line(job):
    started = job("seq 1 500000")
    with iof.attach(started.name, wait=30) as tool:
        cached(tool, sum(len(str(number)) + 1 for number in range(1, 500001)))
        first = next(tool.lines())
        assert first.lost == first.offset > 0


def test_async_for_reads_on_the_event_loop_without_a_thread(job):
    started = job("seq 1 3", 2)

    async def main():
        tool = iof.attach(started.name, wait=30)
        threads = len(os.listdir("/proc/self/task"))
        found, ticks = [], 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(tick())
        async for line in tool.lines(channels=iof.STDOUT):
            found.append(line.text)
            assert len(os.listdir("/proc/self/task")) == threads
            if len(found) == 6:
                started.end()
        assert ticks > 0
        other.cancel()
        tool.close()
        return found

    assert sorted(asyncio.run(main())) == ["1", "1", "2", "2", "3", "3"]


def test_two_tasks_read_two_jobs_at_once(job):
    first, second = job("echo a"), job("echo a")

    async def read(lines, other):
        found = []
        async for line in lines:
            found.append(line.data)
            other.end()
        return found

    async def main():
        with iof.attach(first.name, wait=30) as one, iof.attach(second.name, wait=30) as two:
            return await asyncio.gather(read(one.lines(), second), read(two.lines(), first))

    assert asyncio.run(main()) == [[b"a"], [b"a"]]


def test_a_task_that_waits_for_a_line_can_be_cancelled(job):
    started = job("echo one")

    async def main():
        with iof.attach(started.name, wait=30) as tool:
            lines = aiter(tool.lines())
            assert (await anext(lines)).data == b"one"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(lines), 0.01)

    asyncio.run(main())


def test_a_wait_for_a_line_that_was_cancelled_can_be_repeated(job):
    started = job("")

    async def main():
        with iof.attach(started.name, wait=30) as tool:
            lines = aiter(tool.lines(events=True, channels=iof.STDOUT))
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(lines), 0.01)
            started.end()
            return [type(item) async for item in lines]

    assert asyncio.run(main()) == [iof.End, iof.JobEnd]


def test_an_async_loop_that_is_left_takes_no_line_along(job):
    started = job("seq 1 9")

    async def main():
        with iof.attach(started.name, wait=30) as tool:
            lines = tool.lines(channels=iof.STDOUT)
            started.end()
            async for line in lines:
                found = [line.text]
                break
            found.append(next(lines).text)
            return found + [line.text async for line in lines]

    assert asyncio.run(main()) == [str(number) for number in range(1, 10)]


def test_positions_begin_where_they_name(job):
    started = job("seq 1 9; seq 1 2 >&2")
    with iof.attach(started.name, wait=30) as tool:
        cached(tool, 22)
        out = {"channels": iof.STDOUT, "follow": False}
        assert [line.data for line in tool.lines(tail=2, **out)] == [b"8", b"9"]
        assert [line.data for line in tool.lines(from_="newest", **out)] == []
        assert [line.data for line in tool.lines(offset=14, ranks=0, **out)] == [b"8", b"9"]
        assert len(list(tool.lines(since=0, **out))) == 9
        assert len(list(tool.lines(since=time.time() - 3600, **out))) == 9
        assert list(tool.lines(until=1.0, **out)) == []
        assert len(list(tool.batches(follow=False))) > 0


def test_resumed_streams_and_those_before_are_the_whole(job):
    started = job("seq 1 1000; seq 1 10 >&2", 2)
    with iof.attach(started.name, wait=30) as tool:
        found, tokens = [], {}
        for line in take(iter(tool.lines()), 700):
            found.append((line.rank, line.channel, line.data))
            tokens[line.rank, line.channel] = line.token
        rest = tool.lines(resume=tokens)
        started.end()
        found += [(line.rank, line.channel, line.data) for line in rest]
        expected = {
            (rank, channel, b"%d" % number)
            for rank in range(2)
            for channel, last in ((iof.STDOUT, 1000), (iof.STDERR, 10))
            for number in range(1, last + 1)
        }
        assert len(found) == len(expected) and set(found) == expected


def test_batches_continue_behind_a_line(job):
    started = job("seq 1 9")
    with iof.attach(started.name, wait=30) as tool:
        cached(tool, 18)
        (*_, line) = take(iter(tool.lines()), 3)
        rest = tool.batches(resume={(0, iof.STDOUT): line.token}, follow=False)
        assert b"".join(bytes(item) for item in rest if isinstance(item, iof.Batch)) == b"4\n5\n6\n7\n8\n9\n"


def test_a_token_of_another_run_is_refused(job):
    first, second = job("echo one"), job("echo one")
    with iof.attach(first.name, wait=30) as tool, iof.attach(second.name, wait=30) as other:
        token = next(tool.lines()).token
        with pytest.raises(ValueError, match="resume: .*another run"):
            other.lines(resume={(0, iof.STDOUT): token})


def test_a_push_reaches_the_ranks_that_it_names(job):
    started = job("if [ $IOF_RANK = 0 ]; then cat; fi", 2, "--stdin-open", "all")
    with iof.attach(started.name, wait=30) as tool:
        lines = tool.lines()
        data = b"a line of 31 bytes is pushed...\n" * 10000
        assert tool.push(data, ranks=0) == iof.PushReport(len(data), 1, {})
        assert [line.data for line in take(iter(lines), 10000)] == [data[:31]] * 10000
        assert tool.push(memoryview(b"last"), ranks=0, end=True).complete == 1
        started.end()
        assert next(lines).data == b"last"
        with pytest.raises(TypeError, match="data: expected bytes, not str"):
            tool.push("text")


def test_a_push_that_was_interrupted_makes_room_for_the_next_one(job, tmp_path):
    started = job(f"until [ -e {tmp_path}/read ]; do sleep 0.01; done; cat", 1, "--stdin-open", "all")

    class Interrupt(Exception):
        pass

    def interrupt(*_arguments):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with iof.attach(started.name, wait=30) as tool:
            with pytest.raises(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                tool.push(b"x" * 10_000_000)
            signal.setitimer(signal.ITIMER_REAL, 0)
            (tmp_path / "read").touch()
            signal.setitimer(signal.ITIMER_REAL, 30)
            assert tool.push(b"last", end=True).complete == 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_query_has_the_values_of_the_engine(job):
    started = job("echo one", 2)
    with iof.attach(started.name, wait=30) as tool:
        cached(tool, 8)
        found = tool.query("procs", "stats", "namespaces", job=started.name)
        assert [proc["rank"] for proc in found["procs"]] == [0, 1]
        assert {proc["state"] for proc in found["procs"]} == {"running"}
        streams = [stream for stream in found["stats"] if stream["channel"] == iof.STDOUT]
        assert [stream["produced"] for stream in streams] == [4, 4]
        lines = tool.lines()

        def readers():
            return {reader["tool"] for stream in tool.query("stats")["stats"] for reader in stream["readers"]}

        until(lambda: "python" in readers())
        lines.close()
        (info,) = tool.jobs()
        assert (info.nspace, info.ranks, info.exit_code) == (started.name, 2, None)
        (listed,) = [info for info in iof.jobs() if info.nspace == started.name]
        assert listed.engine_pid == tool.engine_pid == started.process.pid
        with iof.attach(socket=listed.socket) as same:
            assert same.engine_pid == tool.engine_pid


def test_a_signal_reaches_the_ranks(job):
    started = job("trap 'echo caught' USR1; echo ready", 2)
    with iof.attach(started.name, wait=30) as tool:
        lines = tool.lines(ranks=1, channels=iof.STDOUT)
        assert next(lines).data == b"ready"
        assert tool.signal(signal.SIGUSR1, ranks=1) > 0
        assert next(lines).data == b"caught"


def test_the_end_of_the_engine_is_an_error_after_the_last_line(job):
    started = job("echo one")
    with iof.attach(started.name, wait=30) as tool:
        lines = tool.lines()
        assert next(lines).data == b"one"
        started.process.kill()
        with pytest.raises(iof.Error, match="output is missing") as raised:
            next(lines)
        assert raised.value.status == -61
        with pytest.raises(iof.Error):
            tool.query("procs")


def test_the_gil_is_released_while_a_reader_waits(job):
    started = job("")
    with iof.attach(started.name, wait=30) as tool:
        lines, ended = tool.lines(), []
        thread = threading.Thread(target=lambda: ended.extend(lines))
        thread.start()
        with pytest.raises(RuntimeError, match="another thread"):
            until(lambda: lines.__next__() is None)
        started.end()
        thread.join()
        assert ended == []


@pytest.mark.parametrize("closes", ["reader", "tool"])
def test_a_thread_that_waits_ends_when_another_one_closes(job, closes):
    started, ended = job(""), []

    def read(lines):
        try:
            ended.extend(lines)
        except ValueError as error:
            ended.append(str(error))

    with iof.attach(started.name, wait=30) as tool:
        lines = tool.lines()
        thread = threading.Thread(target=read, args=[lines], daemon=True)
        thread.start()
        with pytest.raises(RuntimeError):
            until(lambda: lines._reader.waits() is None)
        (lines if closes == "reader" else tool).close()
        thread.join(30)
    assert ended == ["the reader is closed"]


def test_a_task_that_waits_ends_when_another_one_closes(job):
    started = job("")

    async def main():
        tool = iof.attach(started.name, wait=30)
        waiting = asyncio.create_task(anext(tool.lines()))
        await asyncio.sleep(0)
        tool.close()
        with pytest.raises(ValueError, match="the reader is closed"):
            await asyncio.wait_for(waiting, 30)

    asyncio.run(main())


def test_a_job_that_does_not_exist_is_an_error_with_a_status():
    with pytest.raises(iof.Error) as raised:
        iof.attach("py-none")
    assert raised.value.status == -46 and "py-none" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ranks": "1"}, TypeError, "ranks: expected an int"),
        ({"ranks": [-1]}, ValueError, "ranks: -1 is not in the range"),
        ({"ranks": []}, ValueError, "ranks: expected at least one"),
        ({"ranks": [True]}, TypeError, "ranks: expected an int, not bool"),
        ({"ranks": 7}, iof.Error, "7"),
        ({"channels": 2}, TypeError, "channels: expected iof.Channel, not int"),
        ({"channels": iof.Channel(0)}, ValueError, "channels: expected STDOUT"),
        ({"from_": "end"}, ValueError, "from_: 'end' is neither"),
        ({"tail": -1}, ValueError, "tail: -1"),
        ({"tail": 1, "since": 1}, ValueError, "since: cannot be combined with tail"),
        ({"since": "now"}, TypeError, "since: expected seconds"),
        ({"since": datetime.datetime(1, 1, 1)}, ValueError, "since: "),
        ({"until": datetime.timedelta(-(10**8))}, ValueError, "until: "),
        ({"job": "\udc80"}, ValueError, "job: 'utf-8'"),
        ({"offset": 1}, ValueError, "offset: applies to one stream"),
        ({"follow": 1}, TypeError, "follow: expected a bool"),
        ({"events": 1}, TypeError, "events: expected a bool"),
        ({"resume": {(0, iof.STDOUT): "x"}}, ValueError, "resume: 'x' is not a token"),
        ({"since": float("nan")}, ValueError, "since: nan is not seconds"),
        ({"job": "a/b"}, ValueError, "job: "),
        ({"rank": 1}, TypeError, "'rank'"),
        ({"job": 3}, TypeError, "job: expected a str"),
    ],
)
def test_a_bad_argument_is_named(job, arguments, error, message):
    started = job("echo one")
    with iof.attach(started.name, wait=30) as tool:
        next(tool.lines())
        with pytest.raises(error, match=message):
            tool.lines(**arguments)


def test_a_token_is_that_of_one_channel(job):
    started = job("echo one")
    with iof.attach(started.name, wait=30) as tool:
        token = next(tool.lines()).token
        with pytest.raises(ValueError, match="resume: expected one output channel"):
            tool.lines(resume={(0, iof.OUTPUTS): token})


def test_a_closed_tool_and_its_readers_refuse_calls(job):
    started = job("echo one")
    tool = iof.attach(started.name, wait=30)
    lines = tool.lines()
    tool.close()
    tool.close()
    for call in (lambda: next(lines), lambda: tool.query("procs"), tool.lines):
        with pytest.raises(ValueError, match="closed"):
            call()
