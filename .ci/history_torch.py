"""Jobs of `.ci/history` under torchrun with the logs specs of the module `iof`, on this node.

The workers are history_rank.c, which has the number ATTEMPT * WORKERS + RANK. Of each attempt but the last one a worker fails.
The readers are the console of torchrun, its files, and up to four tools, each of which attaches to the job of one attempt.
history_check_torch.py says what the console and the files must have.
"""

import glob
import os
import pathlib
import shutil
import time

BITS = {"stdout": 1, "stderr": 2}


def plan(run):
    """Returns the command of a random job, and plans its readers and faults."""
    rng = run.rng
    workers, attempts = rng.choice([1, 2, 4, 4, 8]), rng.choice([1, 1, 2, 3])
    run.workers, run.hosts, run.is_text = workers, [None] * (workers * attempts), rng.random() < 0.75
    run.cache, run.has_diag, run.carrier, run.reattach = 1 << 20, False, "torchrun", False
    run.bad_exit, run.timeout, run.at_start = None, False, False
    run.disk = rng.choice([None] * 5 + [16, 64, 256]) if run.args.disks else None
    run.variables["PMIX_SERVER_TMPDIR"], run.sockets = run.directory, run.path(f"iof-{os.getuid()}")
    # A message of torchrun may divide a line that is longer than a pipe takes at once.
    run.longest = 3000
    run.plan_ranks()
    for attempt in range(attempts - 1):
        path = pathlib.Path(run.path(f"plan.{attempt * workers + rng.randrange(workers)}"))
        *others, _ = path.read_text().splitlines()
        path.write_text("\n".join([*others, f"s {rng.choice([0, 0, 100, 500])}", rng.choice(["x 3", "k 9", "k 15"])]))
    faults = ["freeze end", "freeze rank", "kill rank", "cgroup-freeze end", "cgroup-freeze rank"] * 2
    faults += ["interrupt end", "terminate end", "kill end", "emfile end"] + ["stutter end", "stutter rank"] * 5
    count = rng.choice([0, 0, 1, 1, 2, 5])
    run.faults = [(rng.uniform(0, 1.5 * attempts), rng.choice(faults), rng.random(), rng.uniform(0.05, 1.0)) for _ in range(count)]
    words = [run.args.torchrun, "--logs-specs", "iof", "--nnodes", "1", "--nproc-per-node", str(workers), "--no-python"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", f"job{run.seed}"]
    words += ["--max-restarts", str(attempts - 1), "--monitor-interval", "0.05", "--log-dir", run.path("disk/logs" if run.disk else "logs")]
    adopted = outputs(run, words)
    pulled = sorted({number for number, _ in adopted if number < workers})
    run.pulls = [plan_pull(run, number, pulled, adopted) for number in range(rng.choice([0, 1, 1, 2, 4]) if pulled else 0)]
    return [*words, run.args.rank, run.directory]


def outputs(run, words):
    """Adds the options of the outputs and their readers. Returns the streams of the engine."""
    rng, workers = run.rng, run.workers
    tees, redirects = [3] * workers, [0] * workers
    if rng.random() < 0.6:
        tees, redirects = ([rng.choice(bits) for _ in range(workers)] for bits in ([3, 3, 0, 1, 2], [0, 0, 1, 3]))
    # Lines without a prefix are known by their text alone.
    redirects = redirects if run.is_text else [3] * workers
    shown = sorted(rng.sample(range(workers), rng.randint(1, workers))) if rng.random() < 0.25 else range(workers)
    for option, bits in (("--tee", tees), ("--redirects", redirects)):
        words += [option, str(bits[0]) if len(set(bits)) == 1 else ",".join(f"{rank}:{bit}" for rank, bit in enumerate(bits))]
    words += ["--local-ranks-filter", ",".join(map(str, shown))] * (len(shown) < workers)
    streams = [(number, channel) for number in range(len(run.hosts)) for channel in BITS]

    def chosen(bits, ranks=range(workers)):
        return [(number, channel) for number, channel in streams if bits[number % workers] & BITS[channel] and number % workers in ranks]

    filed, prefixed = chosen([tee | redirect for tee, redirect in zip(tees, redirects)]), chosen(tees, shown)
    plain = [stream for stream in streams if stream[0] % workers in shown and stream not in filed]
    console = run.reader("launcher", "torchrun", False, BITS, range(len(run.hosts)), 0.3 if run.disk else 0)
    files = run.reader("files", "files", False, BITS, range(len(run.hosts)), 0)
    template = rng.random() < 0.3
    if template:
        run.variables["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "<${node}/${rank}> "
    console |= {"torchrun": "console", "streams": plain + prefixed, "prefixed": prefixed, "prefix": "<0/RANK> " if template else "[defaultRANK]:"}
    files |= {"torchrun": "files", "streams": filed, "launcher": True, "small": bool(run.disk), "merged": False, "slow": False}
    console["streams"].sort()
    run.readers = [console, files]
    return plain + [stream for stream in filed if stream not in plain]


def plan_pull(run, number, pulled, adopted):
    """Returns a tool for one attempt."""
    attempt = run.rng.randrange(len(run.hosts) // run.workers)
    reader, *others = run.plan_pull(number, False, pulled)
    reader |= {"base": attempt * run.workers, "nspace": f"torch-job{run.seed}-0-{attempt}", "streams": adopted, "small": False}
    return reader, *others


def logs(run, reader):
    """The logs of the attempt of a tool."""
    paths = [run.path(f"log.{number}") for number in range(reader["base"], reader["base"] + run.workers)]
    return [path for path in paths if os.path.exists(path)]


def wait(run, reader):
    """Waits until the attempt of a tool begins. Returns whether it does."""
    while not logs(run, reader):
        if run.process.poll() is not None:
            return False
        time.sleep(0.02)
    return True


def collect(run):
    """Takes the files of torchrun to those of the history, and leaves out the tools of attempts that were not made."""
    for path in glob.glob(run.path("*/logs/*/attempt_*/*/std*.log")) + glob.glob(run.path("logs/*/attempt_*/*/std*.log")):
        *_, attempt, rank, name = path.split("/")
        number = int(attempt.removeprefix("attempt_")) * run.workers + int(rank)
        shutil.copy(path, run.path(f"files.{number}.{name.removesuffix('.log')}"))
    run.pulls = [pull for pull in run.pulls if logs(run, pull[0])]
    for reader, *_ in run.pulls:
        reader["last_write"] = max(os.stat(path).st_mtime for path in logs(run, reader))
