"""Signals, fork, subinterpreters and the end of the interpreter."""

import gc
import os
import pathlib
import signal
import subprocess
import sys

import iof
import pytest
from conftest import until

SCRIPT = """
import iof, signal, sys
tool = iof.attach({name!r}, wait=30)
lines = tool.lines()
print(next(lines).text, flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
"""


def is_asleep(process):
    """Returns whether the main thread of a process sleeps in ppoll(2) or epoll_wait(2)."""
    with open(f"/proc/{process.pid}/wchan", encoding="ascii") as file:
        return file.read().startswith(("poll_schedule", "do_poll", "do_sys_poll", "ep_", "do_epoll"))


@pytest.mark.parametrize("call", ["next(lines)", "for line in tool.batches(channels=iof.STDERR): pass"])
def test_ctrl_c_raises_keyboard_interrupt_while_a_reader_waits(job, python, call):
    started = job("echo one")
    process = python(SCRIPT.format(name=started.name, call=call))
    assert process.stdout.readline() == "one\n"
    until(lambda: is_asleep(process))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n" and process.returncode == 7


def test_ctrl_c_raises_keyboard_interrupt_while_an_engine_is_stopped(job, python):
    started = job("echo one")
    process = python(SCRIPT.format(name=started.name, call="sys.stdin.readline(); tool.query('procs')"), stdin=subprocess.PIPE)
    assert process.stdout.readline() == "one\n"
    started.process.send_signal(signal.SIGSTOP)
    # The other threads run until the one that has received the signal does.
    until(lambda: all(") T " in stat.read_text() for stat in pathlib.Path(f"/proc/{started.process.pid}/task").glob("*/stat")))
    try:
        process.stdin.write("\n")
        process.stdin.flush()
        until(lambda: is_asleep(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 7
    finally:
        started.process.send_signal(signal.SIGCONT)


def test_the_handler_of_another_signal_runs_while_a_reader_waits(job, python):
    started = job("echo one")
    call = "signal.signal(signal.SIGUSR1, lambda *_: print('handled', flush=True)); print('set', flush=True); next(lines)"
    process = python(SCRIPT.format(name=started.name, call=call))
    assert process.stdout.readline() == "one\n" and process.stdout.readline() == "set\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "handled\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_after_fork_may_not_use_what_its_parent_opened(job):
    started = job("echo one; echo two")
    with iof.attach(started.name, wait=30) as tool:
        lines, batches = tool.lines(), tool.batches()
        assert next(lines).data == b"one"
        batch = next(batches)
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (lambda: tool.query("procs"), tool.lines, lambda: next(lines), lambda: memoryview(batch), batch.release):
                try:
                    call()
                except RuntimeError as error:
                    refused += "parent process" in str(error)
            del lines, batches, batch, tool
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        # Nothing of the parent's has changed.
        assert bytes(batch)[:4] == b"one\n"
        assert next(lines).data == b"two"
        assert tool.query("procs")["procs"] != []


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_of_multiprocessing_open_their_own(job, python, method):
    started = job("echo one; echo two")
    process = python(
        f"""
import iof, multiprocessing
def use(name):
    with iof.attach(name) as tool:
        lines = iter(tool.lines())
        return next(lines).text + next(lines).text, iof.run(["true"], ranks=2).exits
if __name__ == "__main__":
    tool, engine = iof.attach({started.name!r}, wait=30), iof.Engine()
    lines = iter(tool.lines())
    print(next(lines).text)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(use, [{started.name!r}] * 4))
    print(next(lines).text, [line.text for line in engine.launch(iof.App(["echo", "x"])).lines()])
"""
    )
    out = f"one\n{[('onetwo', {0: 0, 1: 0})] * 4}\ntwo ['x']\n"
    assert process.communicate(timeout=60)[0] == out and process.returncode == 0


@pytest.mark.parametrize("call", ["wait", "lines"])
def test_ctrl_c_ends_a_wait_of_the_event_loop(python, call):
    waits = {"wait": "await job.wait()", "lines": "[line async for line in job.lines()]"}
    process = python(
        f"""
import asyncio, iof
async def main():
    async with iof.Engine() as engine:
        job = await engine.spawn(iof.App(["sleep", "1000"]))
        print(*job.pids, flush=True)
        {waits[call]}
asyncio.run(main())
""",
        stderr=subprocess.PIPE,
    )
    pid = int(process.stdout.readline())
    until(lambda: is_asleep(process))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1].endswith("KeyboardInterrupt\n")
    assert not os.path.exists(f"/proc/{pid}")


def test_an_interpreter_may_exit_with_open_tools(job, python):
    started = job("echo one")
    script = SCRIPT.format(name=started.name, call="it = iter(tool.batches()); keep = next(it)")
    process = python(script)
    assert process.communicate(timeout=30)[0] == "one\n" and process.returncode == 0


def test_a_thousand_tools_leave_no_descriptor_thread_or_memory(job):
    started = job("seq 1 100")

    def attach(count):
        for _ in range(count):
            with iof.attach(started.name, wait=30) as tool:
                lines, batches = tool.lines(), tool.batches()
                assert next(lines).data == b"1"
                view = memoryview(next(batches))
                tool.close()
                assert view[:2] == b"1\n"

    def held():
        gc.collect()
        size = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return [len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task", "map_files")], size * os.sysconf("SC_PAGESIZE")

    attach(50)
    before, size = held()
    attach(1000)
    after, grown = held()
    assert after == before and grown - size < 4 << 20


def test_a_subinterpreter_is_refused(python):
    interpreters = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    process = python(
        f"""
import iof, {interpreters} as interpreters
try:
    failed = interpreters.run_string(interpreters.create(), "import iof")
    print(getattr(failed, "msg", None))
except BaseException as error:
    print(error)
"""
    )
    assert "subinterpreter" in process.communicate(timeout=60)[0]
