"""Launchers: `run`, engines on the event loop, adopted processes."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading

import iof
import pytest
from conftest import until


NODES = {"hosts": "a:2,b:2", "rsh": "sh -c"}


def sh(script, ranks=1, **options):
    return iof.App(["sh", "-c", script], ranks, **options)


@pytest.fixture
def hanging(tmp_path):
    """Returns a command of carriers that never starts an agent, and a file that it creates."""
    began = tmp_path / "began"
    (tmp_path / "hang").write_text(f"#!/bin/sh\ntouch {began}\nexec sleep 1000\n", encoding="ascii")
    (tmp_path / "hang").chmod(0o755)
    return f"{tmp_path}/hang %h", began


def test_run_writes_the_output_and_returns_the_exit_codes(python):
    process = python(
        """
import iof, sys
print("before")
result = iof.run(["sh", "-c", 'echo out $IOF_RANK $X; echo err >&2; exit $IOF_RANK'], ranks=3, env={"X": "x"}, style="tag")
print(result)
""",
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate()
    lines = out.splitlines()
    assert lines[0] == "before"
    assert sorted(line.partition("<")[2] for line in lines[1:4]) == [f"stdout>: out {rank} x" for rank in range(3)]
    assert lines[4] == "Result(exit_code=1, exits={0: 0, 1: 1, 2: 2}, ended_early=None, lost=0)" or lines[4].startswith("Result(exit_code=2")
    assert err.count("<stderr>: err\n") == 3


def test_run_prints_json(python):
    process = python("import iof; iof.run(['echo', 'one'], style='json')")
    objects = [json.loads(line) for line in process.communicate()[0].splitlines()]
    assert {"one\n", "one"} & {entry.get("data") for entry in objects}


def test_run_writes_files_of_ranks(tmp_path, capfd):
    command = ["sh", "-c", "echo out $IOF_RANK; echo err >&2"]
    assert iof.run(command, ranks=2, name="files", style=f"dir={tmp_path}/d").exit_code == 0
    assert (tmp_path / "d/files/rank.1/stdout").read_text() == "out 1\n"
    assert (tmp_path / "d/files/rank.0/stderr").read_text() == "err\n"
    assert capfd.readouterr() == ("", "")
    iof.run(command, ranks=2, style=f"rank,file={tmp_path}/f.%r:pattern:copy,merge-stderr-to-stdout")
    assert sorted((tmp_path / "f.1").read_text().splitlines()) == ["[1]<stderr>: err", "[1]<stdout>: out 1"]
    assert len(capfd.readouterr().out.splitlines()) == 4


def test_files_that_cannot_be_written_are_an_error(tmp_path):
    with pytest.raises(iof.Error, match="/dev/null/d"):
        iof.run(["true"], style="dir=/dev/null/d")
    with pytest.raises(iof.Error, match="full.0: No space"):
        (tmp_path / "full.0").symlink_to("/dev/full")
        iof.run(["seq", "1", "100000"], style=f"file={tmp_path}/full.%r:pattern")


def test_each_line_is_passed_to_on_line():
    lines = []
    result = iof.run(["sh", "-c", "seq 1 1000"], ranks=8, on_line=lines.append)
    assert result == iof.Result(0, dict.fromkeys(range(8), 0), None)
    for rank in range(8):
        assert [line.data for line in lines if line.rank == rank] == [b"%d" % number for number in range(1, 1001)]


def test_a_result_counts_what_a_drop_policy_kept_from_being_printed(python, tmp_path):
    go = tmp_path / "go"
    script = f"""
import iof, sys
result = iof.run(["sh", "-c", "seq 1 300000; touch {go}"], drop="oldest", cache_size=16384)
print(result.lost, file=sys.stderr)
"""
    process = python(script, stderr=subprocess.PIPE)
    until(go.exists)
    out, err = process.communicate(timeout=30)
    assert int(err) > 0 and len(out) + int(err) == 1988895
    assert iof.run(["true"]).lost == 0


def test_an_exception_of_on_line_ends_the_job_and_is_raised():
    pids = []

    def fail(line):
        pids.append(int(line.data))
        raise LookupError("of the callback")

    with pytest.raises(LookupError, match="of the callback"):
        iof.run(["sh", "-c", "echo $$; exec sleep 1000"], on_line=fail)
    assert not os.path.exists(f"/proc/{pids[0]}")


def test_ctrl_c_ends_the_ranks_of_run(python):
    process = python(
        """
import iof, sys
try:
    iof.run(["sh", "-c", "echo $$; exec sleep 1000"], ranks=2)
except KeyboardInterrupt:
    sys.exit(7)
"""
    )
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 7
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_an_engine_ends_the_ranks_of_a_job_that_an_interrupt_has_taken_away():
    with iof.Engine() as engine:
        (pid,) = engine.launch(iof.App(["sleep", "1000"]), output="print").pids
    assert not os.path.exists(f"/proc/{pid}")


def test_ranks_of_hosts_are_started_by_the_command_of_the_package(tmp_path):
    lines = []
    script = "echo $MODE $PWD $(readlink /proc/$PPID/exe); exit $IOF_RANK"
    result = iof.run(["sh", "-c", script], ranks=4, **NODES, env={"MODE": "fast"}, cwd=tmp_path, on_line=lines.append)
    assert result == iof.Result(1, {rank: rank for rank in range(4)}, None) or result.exit_code in (2, 3)
    assert result.exits == {rank: rank for rank in range(4)}
    assert sorted(line.rank for line in lines) == [0, 1, 2, 3]
    assert {line.text for line in lines} == {f"fast {tmp_path} {os.path.realpath(iof.command())}"}


def test_the_output_of_hosts_is_printed(python):
    script = f"import iof; iof.run(['sh', '-c', 'seq 1 1000'], ranks=4, **{NODES}, style='rank')"
    lines = python(script).communicate(timeout=60)[0].splitlines()
    assert sorted(lines) == sorted(f"[{rank}]<stdout>: {number}" for rank in range(4) for number in range(1, 1001))


def test_this_node_alone_needs_no_carrier():
    assert iof.run(["true"], ranks=2, hosts="localhost:2").exits == {0: 0, 1: 0}


def test_ranks_of_hosts_receive_pushes_and_signals():
    with iof.Engine() as engine:
        job = engine.launch(sh("read x; echo got $x; exec sleep 1000", 4), **NODES, stdin="pipe")
        with iof.attach(job.nspace) as tool:
            assert tool.push(b"it\n").complete == 4
            lines = job.lines()
            assert [next(lines).text for _ in range(4)] == ["got it"] * 4
            job.signal(signal.SIGTERM)
            assert list(lines) == []
        assert job.join().exits == dict.fromkeys(range(4), 128 + 15)


def test_a_host_that_cannot_be_reached_is_an_error():
    with pytest.raises(iof.Error, match="cannot start ranks on a: .*exit status: 1"):
        iof.run(["true"], hosts="a", rsh="false")


def test_ctrl_c_ends_a_start_on_hosts(python, hanging):
    rsh, began = hanging
    process = python(f"import iof\ntry: iof.run(['true'], hosts='a', rsh={rsh!r})\nexcept KeyboardInterrupt: raise SystemExit(7)")
    until(began.exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 7


def test_a_timeout_ends_the_job():
    result = iof.run(["sleep", "1000"], timeout=0.1)
    assert result.ended_early == "timeout" and result.exit_code != 0


def test_apps_have_their_own_ranks_environment_and_directory(tmp_path):
    found = {}
    (tmp_path / "where").symlink_to("/bin/pwd")
    apps = [sh("echo a $X", 2, env={"X": "1"}), iof.App([tmp_path / "where", "-P"], cwd=tmp_path)]
    iof.run(apps, on_line=lambda line: found.update({line.rank: line.text}))
    assert found == {0: "a 1", 1: "a 1", 2: str(tmp_path)}


def test_an_engine_starts_jobs_on_the_event_loop():
    async def main():
        async with iof.Engine() as engine:
            jobs = [await engine.spawn(sh("echo $IOF_RANK; exit $IOF_RANK", 4)) for _ in range(2)]

            async def read(job):
                return sorted([line.rank async for line in job.lines()])

            ranks = await asyncio.gather(*map(read, jobs))
            results = await asyncio.gather(*(job.wait() for job in jobs))
        assert ranks == [[0, 1, 2, 3]] * 2
        assert [result.exits for result in results] == [{0: 0, 1: 1, 2: 2, 3: 3}] * 2

    asyncio.run(main())


def test_several_tasks_may_wait_for_one_job():
    async def main():
        async with iof.Engine() as engine:
            job = await engine.spawn(sh("read x"), stdin="pipe")
            waits = [asyncio.create_task(job.wait()) for _ in range(3)]
            await asyncio.sleep(0)
            job.end()
            assert len(await asyncio.wait_for(asyncio.gather(*waits), 30)) == 3

    asyncio.run(main())


def test_an_engine_lives_as_long_as_a_reader_of_its_job():
    def start():
        return iof.Engine(tools=False).launch(sh("read x; seq 1 3", 2), stdin="null").lines()

    assert sorted(line.text for line in start()) == ["1", "1", "2", "2", "3", "3"]


def test_waiting_discards_what_is_not_read():
    async def main():
        async with iof.Engine(cache_size=16384) as engine:
            job = await engine.spawn(sh("seq 1 100000"))
            assert (await job.wait()).exit_code == 0
            with pytest.raises(ValueError, match="output"):
                job.lines()

    asyncio.run(main())


def test_the_end_of_the_block_ends_the_jobs():
    async def main():
        async with iof.Engine() as engine:
            job = await engine.spawn(iof.App(["sleep", "1000"]))
            (pid,) = job.pids
        return pid

    assert not os.path.exists(f"/proc/{asyncio.run(main())}")


def test_tools_find_the_jobs_of_an_engine():
    with iof.Engine() as engine:
        job = engine.launch(sh("read x; echo got $x"), name=f"py-{os.getpid()}-push", stdin="pipe")
        with iof.attach(job.nspace) as tool:
            lines = tool.lines()
            assert tool.push(b"it\n", end=True).complete == 1
            assert next(lines).data == b"got it"
            assert [line.data for line in job.lines()] == [b"got it"]
        assert job.join().exit_code == 0


def test_adopted_processes_are_a_job():
    with iof.Engine() as engine:
        processes = [
            subprocess.Popen(["sh", "-c", f"echo {rank}; exit {rank}"], stdout=subprocess.PIPE) for rank in range(3)
        ]
        ranks = [iof.Adopted(rank, stdout=process.stdout, pid=process.pid) for rank, process in enumerate(processes)]
        job = engine.adopt(ranks)
        for process in processes:
            process.stdout.close()
        for rank, process in enumerate(processes):
            assert job.report_exit(rank, process.wait())
        assert sorted(line.data for line in job.lines()) == [b"0", b"1", b"2"]
        assert job.join().exits == {0: 0, 1: 1, 2: 2}
        assert not job.report_exit(0, 0)


def test_an_adopted_child_is_reaped_on_request():
    with iof.Engine() as engine:
        reading, writing = os.pipe()
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "echo one; kill -9 $$"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)])
        os.close(writing)
        job = engine.adopt([iof.Adopted(0, stdout=reading, pid=pid, reap=True)])
        os.close(reading)
        assert [line.data for line in job.lines()] == [b"one"]
        assert job.join().exit_code == 128 + 9


def test_batches_of_a_job_are_its_bytes():
    with iof.Engine() as engine:
        job = engine.launch(sh("seq 1 100000"), output="batches")
        data = b"".join(bytes(item) for item in job.batches() if isinstance(item, iof.Batch))
        assert data == b"".join(b"%d\n" % number for number in range(1, 100001))


def test_a_job_that_has_ended_is_removed_on_request():
    with iof.Engine() as engine:
        job = engine.launch(sh("read x"), stdin="pipe")
        assert not job.remove()
        with iof.attach(job.nspace) as tool:
            tool.push(b"", end=True)
            job.join()
            assert job.remove()
            assert tool.query("NAMESPACE_INFO").get("NAMESPACE_INFO", []) == []


def test_a_removal_does_not_stop_a_start_that_fails(python):
    script = """
import iof, threading
with iof.Engine(tools=False) as engine:
    job = engine.launch(iof.App(["true"]), output=None)
    job.join()
    def fail():
        for _ in range(200):
            try: engine.launch(iof.App(["/nonexistent"]))
            except iof.Error: pass
    threads = [threading.Thread(target=fail, daemon=True) for _ in range(2)]
    [thread.start() for thread in threads]
    while any(thread.is_alive() for thread in threads): job.remove()
print("done")
"""
    assert python(script).communicate(timeout=30)[0] == "done\n"


def test_drop_policies_lose_and_tell():
    with iof.Engine(cache_size=16384, drop="oldest") as engine:
        job = engine.launch(sh("seq 1 100000"), output="events")
        with iof.attach(pid=os.getpid()) as tool:
            until(lambda: {proc["state"] for proc in tool.query("procs")["procs"]} == {"terminated"})
        items = list(job.lines())
        (end,) = [item for item in items if isinstance(item, iof.End) and item.channel == iof.STDOUT]
        gaps = sum(item.lost for item in items if isinstance(item, iof.Gap))
        assert end.lost == gaps > 0 and end.produced == 588895


def test_output_that_cannot_be_written_is_an_error(python):
    script = "import iof\ntry: iof.run(['sh', '-c', 'while echo y; do :; done'])\nexcept iof.Error as error: raise SystemExit(error.status & 255)"
    with open("/dev/full", "w", encoding="ascii") as full:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=full)
        assert process.wait(30) == -3331 & 255


def test_ranks_are_ended_if_only_their_stderr_cannot_be_written(python):
    script = "import iof\ntry: iof.run(['sh', '-c', 'echo e >&2; exec sleep 1000'])\nexcept iof.Error: raise SystemExit(7)"
    with open("/dev/full", "w", encoding="ascii") as full:
        assert python(script, stderr=full).wait(30) == 7


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_after_fork_may_not_use_the_engine():
    with iof.Engine() as engine:
        job = engine.launch(sh("echo one"))
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (lambda: engine.launch(sh("true")), job.join, lambda: job.signal(15)):
                try:
                    call()
                except RuntimeError:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert [line.data for line in job.lines()] == [b"one"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_after_fork_may_leave_the_block_of_its_parents_engine():
    with iof.Engine() as engine:
        job = engine.launch(sh("read x; echo $x"), stdin="pipe")
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            engine.close()
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        with iof.attach(job.nspace) as tool:
            assert tool.push(b"it", end=True).complete == 1
        assert [line.data for line in job.lines()] == [b"it"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_was_forked_while_a_thread_starts_ranks_does_not_wait_for_it(hanging):
    rsh, began = hanging
    engine = iof.Engine()
    start = threading.Thread(target=lambda: pytest.raises(iof.Error, engine.launch, sh("true"), hosts="a", rsh=rsh, timeout=2))
    start.start()
    until(began.exists)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            engine.launch(sh("true"))
        except RuntimeError:
            engine.close()
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    start.join()
    engine.close()


def test_an_interpreter_may_exit_with_an_open_engine(python):
    process = python("import iof; engine = iof.Engine(); job = engine.launch(iof.App(['echo', 'x'])); print(1)")
    assert process.communicate(timeout=30)[0] == "1\n" and process.returncode == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: iof.run("echo"), TypeError, "args: expected a list"),
        (lambda: iof.run([]), ValueError, "args: expected a program"),
        (lambda: iof.run(["true"], ranks=0), ValueError, "ranks: 0"),
        (lambda: iof.run(["true"], on_line=3), TypeError, "on_line: expected a callable"),
        (lambda: iof.run(["true"], on_line=print, style="tag"), ValueError, "style: applies to"),
        (lambda: iof.run(iof.App(["true"]), ranks=2), ValueError, "args: each iof.App has its own ranks"),
        (lambda: iof.run(["true"], style="none"), ValueError, "style: .*'none'"),
        (lambda: iof.run(["true"], stdin="x"), ValueError, "stdin: 'x'"),
        (lambda: iof.run(["true"], drop="all"), ValueError, "drop: 'all'"),
        (lambda: iof.run(["true"], name="a/b"), ValueError, "name: "),
        (lambda: iof.run(["true"], cache_size=1), ValueError, "cache_size: 1"),
        (lambda: iof.run(["/nonexistent"]), iof.Error, "nonexistent"),
        (lambda: iof.run(["true", 1]), TypeError, "args: expected strings, not int"),
        (lambda: iof.run(["true"], env={"A": 1}), TypeError, "env: expected strings, not int"),
        (lambda: iof.run(["true"], env={"A=B": "c"}), ValueError, "env: 'A=B' is not the name"),
        (lambda: iof.run(["true"], timeout=10**400), ValueError, "timeout: 1000"),
        (lambda: iof.run(["true"], timeout=-1), ValueError, "timeout: -1 is not a number of seconds"),
        (lambda: iof.attach("py-none", wait=float("nan")), ValueError, "wait: nan is not a number of seconds"),
        (lambda: iof.run(["true"], cwd=1), TypeError, "cwd: expected a path"),
        (lambda: iof.Engine(tools=False, guardian="/none/iof"), ValueError, "guardian: no file /none/iof"),
        (lambda: iof.Engine(guardian=1), TypeError, "guardian: expected a path"),
        (lambda: iof.attach(socket=1), TypeError, "socket: expected a path"),
        (lambda: iof.Adopted("0"), TypeError, "rank: expected an int"),
        (lambda: iof.Adopted(0, stdout="out"), TypeError, "stdout: expected an int"),
        (lambda: iof.Engine(tools=False).adopt([iof.Adopted(0, stderr=2**30)]), ValueError, "stderr: descriptor 1073741824: Bad file"),
        (lambda: iof.Adopted(0, stderr=-1), ValueError, "stderr: -1"),
        (lambda: iof.Engine(tools=False).adopt(None), TypeError, "ranks: expected several"),
        (lambda: iof.Adopted(0, reap=1), TypeError, "reap: expected a bool"),
        (lambda: iof.Adopted(0, stdout=io.StringIO()), ValueError, "stdout: expected a file with a descriptor"),
        (lambda: iof.Engine(tools=False).adopt([iof.Adopted(1)] * 2), ValueError, "ranks: rank 1 is specified twice"),
        (lambda: iof.Engine(tools=False).adopt([]), ValueError, "ranks: invalid number of ranks 0"),
        (lambda: iof.run(["true", "a\0b"]), ValueError, "args: 'a.x00b' has a NUL byte"),
        (lambda: iof.run(["true", "\ud800"]), ValueError, "args: .*surrogates not allowed"),
        (lambda: iof.run(["true"], env={"A": "\0"}), ValueError, "env: .* has a NUL byte"),
        (lambda: iof.run(["true"], env={"\ud800": ""}), ValueError, "env: .*surrogates not allowed"),
        (lambda: iof.run(["true"], cwd="/a\0"), ValueError, "cwd: .* has a NUL byte"),
        (lambda: iof.run(["true"], name="a\0"), ValueError, "name: "),
        (lambda: iof.run(["true"], style="dir=a\0"), ValueError, "style: "),
        (lambda: iof.run(["true"], stdin=3), TypeError, "stdin: expected a str"),
        (lambda: iof.Engine(directory="/a\0"), ValueError, "directory: .* has a NUL byte"),
        (lambda: iof.attach(socket="/\ud800"), ValueError, "socket: .*surrogates not allowed"),
        (lambda: iof.run(["true"], hosts="a:x"), ValueError, "hosts: invalid host 'a:x'"),
        (lambda: iof.run(["true"], hosts=["a"]), TypeError, "hosts: expected a str"),
        (lambda: iof.run(["true"], ranks=2, hosts="a"), ValueError, "hosts: 2 ranks need as many slots"),
        (lambda: iof.run(["true"], hosts="a", rsh=" "), ValueError, "rsh: the command of carriers is empty"),
        (lambda: iof.run(["true"], hosts="a", rsh="a\0"), ValueError, "rsh: .* has a NUL byte"),
        (lambda: iof.run(["true"], rsh="ssh"), ValueError, "rsh: applies to hosts only"),
        (lambda: iof.run(["true"], hosts="a", stdin="inherit"), ValueError, "stdin: ranks of hosts"),
    ],
)
def test_a_bad_argument_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
