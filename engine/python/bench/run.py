"""Compares `iof.run` with `iof run`: CPU seconds of all processes, ranks included, with tags and output to /dev/null.

    python bench/run.py [LINES_OF_A_RANK] [ROUNDS]

Four ranks write lines of 80 bytes. The CPU time of the same job with one line is taken off.
"""

import resource
import statistics
import subprocess
import sys

import iof

COUNT = int(sys.argv[1] if len(sys.argv) > 1 else 1_000_000)


def used(kind, count):
    rank = ["sh", "-c", f"yes {'x' * 79} | head -n {count}"]
    python = [sys.executable, "-c", f"import iof; iof.run({rank!r}, ranks=4, style='tag')"]
    command = {"iof run": [iof.command(), "run", "-n", "4", "--output", "tag", "--", *rank], "iof.run": python}[kind]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


results = {"iof run": [], "iof.run": []}
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5):
    for kind, seconds in results.items():
        seconds.append(used(kind, COUNT) - used(kind, 1))
for kind, seconds in results.items():
    ratio = statistics.median(one / two for one, two in zip(seconds, results["iof run"], strict=True))
    print(f"{kind}: {statistics.median(seconds):.2f} s of CPU ({min(seconds):.2f} to {max(seconds):.2f}), {ratio:.2f} of iof run")
