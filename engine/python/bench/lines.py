"""Compares reading a cached backlog of lines: CPU seconds of the reading process.

    [IOF_TOOL=target/release/examples/tool] python bench/lines.py [MILLIONS] [ROUNDS]

Each round starts a job that writes lines of 80 bytes, and keeps its output. The loops read all of it, one after the
other, each in a process of its own. `lines` does the work of `stdin`: both add up the lengths of lines. `copy` does the
work of `tool`, the example of `ioforward`, if IOF_TOOL names it: both write to a file in memory.
"""

import os
import resource
import statistics
import subprocess
import sys
import time

import iof

COMMAND = os.environ.get("IOF") or iof.command()
TOOL = os.environ.get("IOF_TOOL")
BATCHES = "for batch in iof.attach(name).batches(channels=iof.STDOUT):\n    if isinstance(batch, iof.Batch): size += "
LOOPS = {
    "stdin": "import sys\nfor line in sys.stdin.buffer: size += len(line)",
    "lines": "for line in iof.attach(name).lines(follow=False): size += len(line.data) + 1",
    "batches": BATCHES + "len(memoryview(batch))",
    "copy": BATCHES + "os.write(1, batch)",
}


def used(command, **options):
    """Returns the CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with os.fdopen(os.memfd_create("output"), "wb") as output:
        subprocess.run(command, check=True, stdout=output, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(loop, name, count):
    """Returns the CPU seconds of a loop beyond those of the same process without it."""
    if loop == "tool":
        return used([TOOL, name])
    seconds = []
    for code in ("", LOOPS[loop] + f"\nassert size == {count * 80}, size"):
        pull = None
        if loop == "stdin" and code:
            pull = subprocess.Popen([COMMAND, "pull", "--no-follow", name], stdout=subprocess.PIPE)
        script = f"import iof, os\nname, size = {name!r}, 0\n{code}"
        seconds.append(used([sys.executable, "-c", script], stdin=pull and pull.stdout))
        if pull:
            pull.stdout.close()
            pull.wait()
    return seconds[1] - seconds[0]


def main():
    count = int(float(sys.argv[1] if len(sys.argv) > 1 else 4) * 1e6)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    results = {loop: [] for loop in LOOPS} | ({"tool": []} if TOOL else {})
    line = "x" * 79
    for number in range(rounds):
        name = f"bench-{os.getpid()}-{number}"
        options = ["--nspace", name, "--cache-size", "512M", "--keep", "600s"]
        script = f"yes {line} | head -n {count}"
        job = subprocess.Popen([COMMAND, "run", *options, "--", "sh", "-c", script], stdout=subprocess.DEVNULL)
        with iof.attach(name, wait=10) as tool:
            while sum(stream["produced"] for stream in tool.query("stats")["stats"]) < count * 80:
                time.sleep(0.1)
            for loop, seconds in results.items():
                seconds.append(measure(loop, name, count))
        job.terminate()
        job.wait()
    for loop, seconds in results.items():
        base = "tool" if TOOL and loop == "copy" else "stdin"
        ratio = statistics.median(one / two for one, two in zip(seconds, results[base], strict=True))
        print(f"{loop}: {statistics.median(seconds):.3f} s of CPU ({min(seconds):.3f} to {max(seconds):.3f}), {ratio:.2f} of {base}")


main()
