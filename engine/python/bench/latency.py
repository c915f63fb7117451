"""Compares the latency of lone lines by torchrun's console: the default specs and those of iof.

    python bench/latency.py [LINES_OF_A_WORKER] [ROUNDS]

Four workers write their clock every 20 ms. The console is a pipe.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

COUNT = int(sys.argv[1] if len(sys.argv) > 1 else 200)
WORKER = f"""import time
for _ in range({COUNT}):
    print(time.monotonic_ns(), flush=True)
    time.sleep(0.02)
"""


def run(options, folder):
    """Returns the milliseconds from each line's write to its arrival."""
    worker = os.path.join(folder, "worker.py")
    with open(worker, "w", encoding="ascii") as file:
        file.write(WORKER)
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    options = ["--nproc-per-node", "4", "--log-dir", os.path.join(folder, "logs"), "--tee", "1", *options]
    with subprocess.Popen([*torchrun, *options, worker], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        return [(time.monotonic_ns() - int(line.split(b":")[1])) / 1e6 for line in process.stdout]


for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
    for kind, options in {"default": [], "iof": ["--logs-specs", "iof"]}.items():
        with tempfile.TemporaryDirectory() as folder:
            delays = sorted(run(options, folder))
        p99 = delays[len(delays) * 99 // 100]
        print(f"{kind}: {len(delays)} lines, p50 {statistics.median(delays):.2f} ms, p99 {p99:.2f} ms", flush=True)
