"""Agents that are killed, full disks, slow terminals and restarts. Run by .ci/torch."""

import os
import pty
import re
import signal
import subprocess
import threading
import time
import tty
import types

import iof
import iof.torchrun
import pytest
from conftest import until

#: The size of a stream's cache and that of a pipe.
HELD = (1 << 20) + (1 << 16)


def jobs_of(started):
    """Returns the names of the agent's jobs: torch-RUN-NODE-ATTEMPT."""
    return sorted(info.nspace for info in iof.jobs() if info.engine_pid == started.process.pid)


def test_a_killed_agent_loses_at_most_caches_and_pipes_and_its_workers_receive_sigpipe(run, tmp_path):
    # The console takes one pipe, and nothing more.
    console, end = os.pipe()
    wrote, pipe = tmp_path / "wrote", tmp_path / "pipe"
    script = f"""
trap 'touch {pipe}; exit' PIPE
line=$(printf '%01000d' 0)
i=0
while [ $i -lt 5000 ]; do i=$((i+1)); echo $line $i; echo $i >{wrote}.new; mv {wrote}.new {wrote}; done
"""
    started = run(script, "--tee", "1", workers=1, stdout=end)
    os.close(end)

    def is_blocked():
        last = wrote.read_text() if wrote.exists() else ""
        time.sleep(0.5)
        return last and wrote.read_text() == last

    until(is_blocked)
    started.process.kill()
    started.process.wait()
    until(pipe.exists)
    written = int(wrote.read_text()) * len(b"0" * 1000 + b" 1000\n")
    with open(console, "rb") as file:
        shown = file.read()
    # Nothing but the end is missing.
    kept = started.file(0)
    for text, prefix in ((kept, b""), (shown, b"[default0]:")):
        numbers = [int(line.split()[1]) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
        assert numbers == list(range(1, len(numbers) + 1))
        assert text.startswith(prefix) and written - len(text) <= HELD
    assert len(shown) < written


def test_a_worker_that_opens_its_stdout_for_reading_and_writing_outlives_the_agent(run, tmp_path):
    go, after = tmp_path / "go", tmp_path / "after"
    script = f"""
exec 3<>/proc/self/fd/1
echo ready
until [ -e {go} ]; do sleep 0.01; done
echo one && echo two >&3 && touch {after}
"""
    started = run(script, "--tee", "1", workers=1)
    assert started.process.stdout.readline() == b"[default0]:ready\n"
    started.process.kill()
    started.process.wait()
    go.touch()
    until(after.exists)


def test_a_full_disk_ends_the_files_and_neither_the_workers_nor_the_console(run, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "iof", disk], check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        started = run("seq 1 200000", "--tee", "3", workers=2, logs=disk / "logs")
        out, err, code = started.end()
        files = [started.file(rank) for rank in range(2)]
    finally:
        subprocess.run(["umount", disk], check=True)
    expected = b"".join(b"%d\n" % number for number in range(1, 200001))
    assert code == 0
    for rank, kept in enumerate(files):
        prefix = b"[default%d]:" % rank
        assert b"".join(line.removeprefix(prefix) + b"\n" for line in out if line.startswith(prefix)) == expected
        assert expected.startswith(kept) and len(kept) < len(expected)
    messages = [line for line in err if line.startswith(b"iof: ")]
    assert len(messages) == 2 and all(b"No space left on device" in message for message in messages)


def test_a_slow_terminal_receives_each_line_whole(run):
    reading, terminal = pty.openpty()
    tty.setraw(terminal)
    started = run("i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo a line of some length $RANK $i; done", "--tee", "1", stdout=terminal)
    os.close(terminal)
    parts = []
    try:
        while part := os.read(reading, 2000):
            parts.append(part)
            time.sleep(0.001)
    except OSError:
        pass  # The terminal is closed.
    os.close(reading)
    assert started.end()[2] == 0
    lines = b"".join(parts).splitlines()
    for rank in range(4):
        expected = [b"[default%d]:a line of some length %d %d" % (rank, rank, number) for number in range(1, 5001)]
        assert [line for line in lines if line.startswith(b"[default%d]" % rank)] == expected
    assert len(lines) == 20000


def test_each_of_several_restarts_is_a_job_of_its_own(run, tmp_path):
    go = tmp_path / "go"
    script = f"""
printf 'attempt %d of %d\\nrest' $TORCHELASTIC_RESTART_COUNT $RANK
until [ -e {go}$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.01; done
[ $TORCHELASTIC_RESTART_COUNT = 3 ] || {{ [ $RANK != 5 ] || kill -9 $$; sleep 1000; }}
"""
    started = run(script, "--tee", "3", "--max-restarts", "3", "--monitor-interval", "0.05", workers=8)
    for attempt in range(4):
        # The job of the attempt, and that of the attempt before.
        numbers = list(range(max(0, attempt - 1), attempt + 1))
        names = until(lambda: names if (names := jobs_of(started)) and [int(name[-1]) for name in names] == numbers else None)  # noqa: B023
        with iof.attach(names[-1]) as tool:
            lines = tool.lines()
            assert {next(lines).text for _ in range(8)} == {f"attempt {attempt} of {rank}" for rank in range(8)}
        (tmp_path / f"go{attempt}").touch()
    out, _err, code = started.end()
    assert code == 0
    for rank in range(8):
        for attempt in range(4):
            assert out.count(b"[default%d]:attempt %d of %d" % (rank, attempt, rank)) == 1
            assert started.file(rank, attempt=attempt) == b"attempt %d of %d\nrest" % (attempt, rank)
        assert out.count(b"[default%d]:rest" % rank) == 4
    assert all(re.fullmatch(rb"\[default\d\]:(attempt \d of \d|rest)", line) for line in out)


def test_sigterm_between_two_attempts_leaves_no_worker(run):
    started = run("echo $$; exec sleep 1000", "--tee", "1", workers=8)
    pids = [int(started.process.stdout.readline().split(b":")[1]) for _ in range(8)]
    started.process.send_signal(signal.SIGTERM)
    assert started.end()[2] != 0
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


class Blocked:
    """A job whose output can't be written until `go`."""

    _native = types.SimpleNamespace(close=lambda _rank: None)

    def __init__(self):
        self.go, self.written = threading.Event(), []

    def batches(self):
        self.go.wait()
        self.written.append("all")
        return []

    def report_exit(self, _rank, _code):
        return True


class Trigger(list):
    """A list that has a signal sent when an element is taken."""

    def pop(self):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        return super().pop()


class Interrupted(threading.Event):
    """An event in whose first waits a signal arrives."""

    def __init__(self, signals):
        super().__init__()
        self.signals = signals

    def wait(self, timeout=None):
        if self.signals:
            self.signals -= 1
            raise InterruptedError
        return super().wait(timeout)


def test_a_signal_does_not_end_the_wait_for_the_output_of_an_attempt():
    def handle(*_signal):
        raise InterruptedError

    job = Blocked()
    attempt = iof.torchrun._Attempt(job, {}, Trigger([os.dup(1)]), [])
    attempt.start()
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(InterruptedError):
            attempt.finish()
    finally:
        signal.signal(signal.SIGUSR1, before)
    threading.Timer(0.1, job.go.set).start()
    attempt.finish()
    assert job.written == ["all"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_at_the_exit_loses_no_output_and_a_second_one_is_an_error(signals, monkeypatch, capfd):
    job, codes = Blocked(), []
    monkeypatch.setattr(os, "_exit", codes.append)
    specs = iof.torchrun.LogsSpecs(log_dir=os.devnull)
    specs._attempt = iof.torchrun._Attempt(job, {}, [], [], Interrupted(signals))
    specs._attempt.start()
    threading.Timer(0.1, job.go.set).start()
    specs._close()
    if signals == 1:
        assert (job.written, codes, capfd.readouterr().err) == (["all"], [], "")
    else:
        assert (codes, capfd.readouterr().err) == ([1], "iof: interrupted: the rest of the output is not written\n")
