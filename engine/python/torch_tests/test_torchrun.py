"""The real torchrun with the logs specs of iof. Run by .ci/torch."""

import os
import pathlib
import re
import signal
import socket
import sys
import threading

import iof
import iof.torchrun
import pytest
from conftest import until


@pytest.mark.parametrize("workers", [4, 8])
def test_each_line_is_whole_on_the_console_and_in_the_file(run, workers):
    started = run("i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo out $RANK $i; echo err $RANK $i >&2; done", "--tee", "3", workers=workers)
    out, err, code = started.end()
    assert code == 0
    for rank in range(workers):
        expected = [b"out %d %d" % (rank, number) for number in range(1, 2001)]
        prefix = b"[default%d]:" % rank
        assert [line.removeprefix(prefix) for line in out if line.startswith(prefix)] == expected
        assert started.file(rank).splitlines() == expected
        assert started.file(rank, "stderr.log").count(b"\n") == 2000
    assert len(out) == workers * 2000
    assert sum(bool(re.match(rb"\[default\d\]:err \d \d+$", line)) for line in err) == workers * 2000


def test_redirects_and_the_filter_are_those_of_the_default_specs(run):
    started = run("echo out $RANK; echo err $RANK >&2", "--redirects", "1", "--local-ranks-filter", "0,2")
    out, err, _code = started.end()
    assert out == []
    assert sorted(line for line in err if line.startswith(b"err")) == [b"err 0", b"err 2"]
    assert [started.file(rank) for rank in range(4)] == [b"out %d\n" % rank for rank in range(4)]


def test_the_prefix_follows_the_template(run):
    template = "${hostname}/${local_rank}/${role_name}${rank} "
    environment = os.environ | {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template}
    out, _err, _code = run("echo x", "--tee", "1", "--role", "trainer", workers=2, env=environment).end()
    assert sorted(out) == [f"{socket.gethostname()}/{rank}/trainer{rank} x".encode() for rank in range(2)]


def test_the_last_line_of_a_killed_worker_is_kept(run):
    started = run("echo begin; printf 'last words'; [ $RANK != 1 ] || kill -9 $$; sleep 1000", "--tee", "3")
    out, _err, code = started.end()
    assert code != 0
    assert b"[default1]:last words" in out and started.file(1) == b"begin\nlast words"


def test_each_attempt_has_its_files(run):
    script = "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3"
    started = run(script, "--tee", "3", "--max-restarts", "1", "--monitor-interval", "0.1", workers=2)
    out, _err, code = started.end()
    assert code == 0 and out.count(b"[default0]:attempt 1") == 1
    assert (started.file(0, attempt=0), started.file(0, attempt=1)) == (b"attempt 0\n", b"attempt 1\n")


def test_tools_find_the_job(run, tmp_path):
    go = tmp_path / "go"
    started = run(f"echo ready $RANK; until [ -e {go} ]; do sleep 0.01; done; echo done", "--tee", "3", workers=2)
    pid = started.process.pid
    (info,) = until(lambda: [info for info in iof.jobs() if info.engine_pid == pid and info.ranks == 2])
    assert info.nspace.startswith("torch-")
    with iof.attach(info.nspace) as tool:
        lines = tool.lines(ranks=1)
        assert next(lines).data == b"ready 1"
        go.touch()
        assert next(lines).data == b"done"
    assert started.end()[2] == 0


def test_two_agents_of_one_machine_have_a_job_each(run, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    go = tmp_path / "go"
    options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two", "--tee", "3"]
    script = f"echo rank $RANK of $WORLD_SIZE; until [ -e {go} ]; do sleep 0.01; done"
    agents = [run(script, *options, workers=2) for _ in range(2)]
    pids = {agent.process.pid for agent in agents}
    names = until(lambda: len(found := {i.nspace for i in iof.jobs() if i.engine_pid in pids}) == 2 and found)
    assert names == {"torch-two-0-0", "torch-two-1-0"}
    go.touch()
    out = sorted(line for agent in agents for line in agent.end()[0])
    assert out == [b"[default%d]:rank %d of 4" % (rank, rank) for rank in range(4)]


def test_a_full_disk_ends_the_file_and_not_the_console(capfd):
    reading, writing = os.pipe()
    sink = iof.torchrun._Sink("/dev/full", writing, "[a]: ")
    for data in (b"one\ntw", b"o\nthr", b"ee"):
        sink.write(data)
    sink.end()
    os.close(writing)
    assert os.read(reading, 100) == b"[a]: one\n[a]: two\n[a]: three\n"
    os.close(reading)
    message = "iof: /dev/full: No space left on device: the rest is not written to it\n"
    assert capfd.readouterr().err == message


def test_messages_of_torch_do_not_divide_lines_in_a_pipe():
    reading, writing = os.pipe()
    sink = iof.torchrun._Sink("", writing, "[a]: ")
    lines = [b"%04d" % number * 20 for number in range(5000)]
    ended, messages = threading.Event(), []

    def tell():
        while not ended.is_set():
            messages.append(os.write(writing, b"a message\n"))
        os.close(writing)

    def write():
        sink.write(b"\n".join(lines) + b"\n")
        ended.set()

    for target in (tell, write):
        threading.Thread(target=target).start()
    with open(reading, "rb", buffering=0) as file:
        found = b"".join(iter(lambda: file.read(5000), b"")).splitlines()
    assert [line for line in found if line != b"a message"] == [b"[a]: " + line for line in lines]
    assert len(found) == len(lines) + len(messages)


def test_a_console_that_cannot_be_written_is_reported_and_a_closed_one_is_not(capfd, tmp_path):
    full, (reading, closed) = os.open("/dev/full", os.O_WRONLY), os.pipe()
    os.close(reading)
    for console in (full, closed):
        sink = iof.torchrun._Sink(str(tmp_path / str(console)), console, "[a]: ")
        sink.write(b"one\n")
        sink.write(b"two\n")
        sink.end()
        os.close(console)
        assert (tmp_path / str(console)).read_bytes() == b"one\ntwo\n"
    assert capfd.readouterr().err == "iof: the console: No space left on device: the rest of [a]: is not written to it\n"


def test_a_message_on_a_full_disk_does_not_end_the_console(monkeypatch):
    reading, writing = os.pipe()
    sink = iof.torchrun._Sink("/dev/full", writing, "[a]: ")
    stderr, full = os.dup(2), os.open("/dev/full", os.O_WRONLY)
    try:
        with open(full, "w", encoding="ascii") as file:
            monkeypatch.setattr(sys, "stderr", file)
            os.dup2(full, 2)
            sink.write(b"one\n")
            monkeypatch.undo()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    sink.write(b"two\n")
    sink.end()
    os.close(writing)
    assert os.read(reading, 100) == b"[a]: one\n[a]: two\n"
    os.close(reading)


def test_a_process_that_a_worker_leaves_does_not_hold_the_agent(run):
    started = run("sleep 30 & echo one", "--tee", "1", workers=1)
    out, _err, code = started.end()
    assert (out, code) == ([b"[default0]:one"], 0)


def test_sigterm_at_the_agent_keeps_what_was_written(run):
    started = run("echo one; exec sleep 1000", "--tee", "1", workers=2)
    pid = started.process.pid
    until(lambda: any(info.engine_pid == pid for info in iof.jobs()))
    with iof.attach(pid=pid) as tool:
        next(tool.lines())
    started.process.send_signal(signal.SIGTERM)
    out, _err, code = started.end()
    assert code != 0 and sorted(out) == [b"[default0]:one", b"[default1]:one"]


def test_a_fifo_in_a_private_folder_takes_the_place_of_proc(monkeypatch):
    real = os.open

    def refuse(path, *arguments):
        if str(path).startswith("/proc/"):
            raise PermissionError(path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    reading, writing, path = iof.torchrun._pipe()
    assert pathlib.Path(path).parent.stat().st_mode & 0o777 == 0o700
    with open(path, "wb", buffering=0) as file:
        file.write(b"x")
    assert os.read(reading, 2) == b"x"
    os.close(reading)
    os.close(writing)


def test_fifos_carry_the_output_and_are_removed(run, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("""
import os
real = os.open
def refuse(path, *arguments):
    if str(path).startswith("/proc/") and "/fd/" in str(path):
        raise PermissionError(path)
    return real(path, *arguments)
os.open = refuse
""")
    (tmp_path / "folder").mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "folder")}
    script = f"readlink /proc/self/fd/1; exit $((1 - TORCHELASTIC_RESTART_COUNT))"
    started = run(script, "--tee", "3", "--max-restarts", "1", "--monitor-interval", "0.1", workers=2, env=environment)
    out, _err, code = started.end()
    assert code == 0 and len(out) == 4 and all(str(tmp_path / "folder/iof-").encode() in line for line in out)
    assert list((tmp_path / "folder").glob("iof-????????")) == []


def test_an_unknown_torch_and_filters_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["torchrun", "--duplicate-stdout-filters", "x"])
    with pytest.raises(ValueError, match="--duplicate-stdout-filters"):
        iof.torchrun.LogsSpecs()
    monkeypatch.setattr(iof.torchrun, "_PARAMETERS", ["folder"])
    with pytest.raises(RuntimeError, match=rf"iof {iof.__version__} .* torch \d"):
        iof.torchrun.LogsSpecs()
