"""`iof run --ranks-env torch` connects the ranks of a job."""

import subprocess
import sys

import iof

TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
sum = torch.ones(1) * dist.get_rank()
dist.all_reduce(sum)
print(dist.get_rank(), dist.get_world_size(), int(sum.item()), flush=True)
dist.destroy_process_group()
"""
NODES = ["--rsh", "sh -c", "--hosts", "localhost:1,127.0.0.1:3"]


def train(options):
    command = [iof.command(), "run", "-n", "4", "--ranks-env", "torch", *options, sys.executable, "-c", TRAIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_the_ranks_of_a_job_are_one_process_group():
    assert train([]) == [f"{rank} 4 6" for rank in range(4)]


def test_the_ranks_of_two_nodes_are_one_process_group():
    assert train(NODES) == [f"{rank} 4 6" for rank in range(4)]
