"""Compares the logs of torchrun by iof with the default: CPU seconds beyond those of a run whose workers write to files,
and broken lines.

    python bench/torchrun.py [LINES_OF_A_WORKER] [ROUNDS]

Four workers write lines of 80 bytes. The console is a file.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile

COUNT = int(sys.argv[1] if len(sys.argv) > 1 else 200000)
WORKER = f"#!/bin/sh\nyes $(printf '%s%078d' $LOCAL_RANK 0) | head -n {COUNT}\n"


def run(options, folder):
    """Returns the CPU seconds of a run, and the lines of its console."""
    worker = os.path.join(folder, "worker.sh")
    with open(worker, "w", encoding="ascii") as file:
        file.write(WORKER)
    os.chmod(worker, 0o755)
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    options = ["--nproc-per-node", "4", "--log-dir", os.path.join(folder, "logs"), *options]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.path.join(folder, "out"), "w+b") as out:
        subprocess.run([torchrun, *options, "--no-python", worker], stdout=out, stderr=subprocess.DEVNULL, check=True)
        out.seek(0)
        console = out.read().splitlines()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, console


KINDS = {"files": ["--redirects", "3"], "default": ["--tee", "3"], "iof": ["--logs-specs", "iof", "--tee", "3"]}
for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
    files = 0.0
    for kind, options in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            seconds, console = run(options, folder)
        files = files or seconds
        broken = sum(not re.fullmatch(rb"\[default(\d)\]:\1?0*", line) for line in console)
        print(f"{kind}: {seconds - files:.2f} s of CPU, {len(console)} lines, {broken} of them broken", flush=True)
