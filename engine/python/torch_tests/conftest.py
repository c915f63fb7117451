"""Helpers of the tests: runs of torchrun, and conditions to wait for."""

import os
import subprocess
import sys
import time

import pytest

TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
LIMIT = 120


def until(condition):
    """Waits for a condition and returns its value."""
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition does not become true"
        time.sleep(0.01)
    return found


class Run:
    """A run of torchrun with a worker that is a shell script."""

    def __init__(self, folder, script, *options, workers=4, logs=None, **popen):
        self.logs = logs or folder / f"logs{time.monotonic_ns()}"
        worker = folder / f"worker{time.monotonic_ns()}.sh"
        worker.write_text("#!/bin/sh\n" + script, encoding="ascii")
        worker.chmod(0o755)
        arguments = ["--logs-specs", "iof", "--nproc-per-node", str(workers), "--log-dir", self.logs, *options]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | popen
        self.process = subprocess.Popen([TORCHRUN, *arguments, "--no-python", worker], **streams)

    def end(self):
        """Returns the lines of stdout, those of stderr and the exit code."""
        out, err = self.process.communicate(timeout=LIMIT)
        return (out or b"").splitlines(), (err or b"").splitlines(), self.process.returncode

    def file(self, rank, name="stdout.log", attempt=0):
        (path,) = self.logs.glob(f"*/attempt_{attempt}/{rank}/{name}")
        return path.read_bytes()


@pytest.fixture
def run(tmp_path):
    runs = []

    def start(*arguments, **options):
        runs.append(Run(tmp_path, *arguments, **options))
        return runs[-1]

    yield start
    for started in runs:
        started.process.kill()
        started.process.communicate()
