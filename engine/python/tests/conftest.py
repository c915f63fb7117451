"""Helpers of the tests: jobs of the command `iof`, and conditions to wait for."""

import contextlib
import itertools
import os
import subprocess
import sys
import time

import pytest

COMMAND = os.environ.get("IOF") or os.path.join(os.path.dirname(sys.executable), "iof")
LIMIT = 30
numbers = itertools.count()


def until(condition):
    """Waits for a condition and returns its value."""
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition does not become true"
        time.sleep(0.005)
    return found


class Job:
    """A job of the command `iof`, whose output goes to /dev/null, and which waits for a file."""

    def __init__(self, script, ranks, options, go):
        self.name = f"py-{os.getpid()}-{next(numbers)}"
        self.go = go / self.name
        options = ["--nspace", self.name, "-n", str(ranks), *options]
        script = f"{script}\nuntil [ -e {self.go} ]; do sleep 0.01; done"
        self.process = subprocess.Popen(
            [COMMAND, "run", *options, "--", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self):
        """Ends the ranks."""
        self.go.touch()

    def stop(self):
        """Ends the ranks and the command, by force if they do not end."""
        self.end()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture
def job(tmp_path):
    """Starts jobs. Their ranks run a script, and then wait until `end` is called."""
    with contextlib.ExitStack() as jobs:

        def start(script, ranks=1, *options):
            started = Job(script, ranks, options, tmp_path)
            jobs.callback(started.stop)
            return started

        yield start


@pytest.fixture
def python(tmp_path):
    """Starts interpreters that run a script."""
    with contextlib.ExitStack() as processes:

        def start(script, **options):
            path = tmp_path / f"script{next(numbers)}.py"
            path.write_text(script)
            process = subprocess.Popen([sys.executable, path], text=True, stdout=subprocess.PIPE, **options)
            processes.callback(process.wait)
            processes.callback(process.kill)
            return process

        yield start
