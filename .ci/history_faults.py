"""Faults of `.ci/history`, and what they and its tools need of this system. What can't be had is left out, and said.

A fault is a verb and a target, such as `kill agent`. What each may cause is in history_check.py:

* kill, cut, interrupt, freeze: signals. `cgroup-freeze` stops all threads of a process in the kernel instead.
* stutter: a process is stopped and continued again and again, each time at another place, and each counts as a fault.
* emfile: the process can open no further file for a while. At the start (`few files`), the launcher has few.
* enomem: a cgroup of the process has memory for a while. What asks for more is killed, or gets ENOMEM.
* full disk: outputs and files are on a tmpfs of some KiB.
* slow carrier: bytes pass in small pieces with pauses.
* clock: the monotonic and the boot clock of agents or of a reader differ from the launcher's, as between machines. This shows
  that no process compares a time of another one's clock with its own. A time namespace can neither step a clock that
  runs, nor change the clock of the day.
"""

import contextlib
import ctypes
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_MOUNTS, RECURSIVE_PRIVATE, DETACH = 0x10000000, 0x20000, 0x44000, 2
SIGNALS = {"kill": signal.SIGKILL, "cut": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "freeze": signal.SIGSTOP}
CHANNELS = {"stdout": 2, "stderr": 4, "stddiag": 8}
# A carrier with processes of its own between the front end and the agent or the link, which can be cut.
PIPES = """export NODE=$1
exec 3>&1 4<&0 >/dev/null </dev/null
{pump} <&4 3>&- | {clock}sh -c "$2" 3>&- 4<&- | {pump} >&3 4<&- &
exec 3>&- 4<&-
wait
"""
SSH = """export NODE=$1
exec ssh -F {ssh} "$1" "export NODE=$1 {mark}; $2"
"""


def call(name, *arguments):
    if getattr(LIBC, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def own_mounts():
    """Moves this process into a mount namespace, in which it can mount small disks."""
    ids = {"uid": os.getuid(), "gid": os.getgid()}
    call("unshare", NEW_MOUNTS | (NEW_USER if ids["uid"] else 0))
    if ids["uid"]:
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        [pathlib.Path(f"/proc/self/{kind}_map").write_text(f"{number} {number} 1") for kind, number in ids.items()]
    call("mount", b"none", b"/", None, RECURSIVE_PRIVATE, None)
    return True


def mount(path, kib):
    os.mkdir(path)
    call("mount", b"tmpfs", path.encode(), b"tmpfs", 0, b"size=%dk" % kib)


def unmount(path, directory):
    """Takes what is on a small disk to a directory."""
    [shutil.copy(file.path, directory) for file in os.scandir(path) if file.is_file()]
    call("umount2", path.encode(), DETACH)
    os.rmdir(path)


def cgroup(file):
    """Finds where a cgroup with this file can be made, of version 2, or of version 1 for memory. Returns it and our own."""
    own = dict(line.split(":")[1:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines())
    for _, point, kind, options, *_ in map(str.split, pathlib.Path("/proc/mounts").read_text().splitlines()):
        controller = "" if kind == "cgroup2" else "memory"
        if kind == "cgroup2" or kind == "cgroup" and "memory" in options.split(","):
            home = os.path.normpath(point + own.get(controller, "/"))
            for base in (home, os.path.dirname(home)):
                probe = pathlib.Path(base, f"iof-history.{os.getpid()}")
                with contextlib.suppress(OSError):
                    probe.mkdir()
                    is_usable = (probe / file).exists()
                    probe.rmdir()
                    if is_usable:
                        return base, home
    raise OSError(f"no cgroup with {file} can be made")


@contextlib.contextmanager
def inside(where, pid, before=(), after=()):
    """Has a process in a cgroup of its own, with values written to its files before and after it is moved there."""
    base, home = where
    group = pathlib.Path(base, f"iof-history.{os.getpid()}.{pid}")
    group.mkdir()
    try:
        for file, value in (*before, ("cgroup.procs", str(pid)), *after):
            (group / file).write_text(value)
        yield group
    finally:
        with contextlib.suppress(OSError):
            pathlib.Path(home, "cgroup.procs").write_text(str(pid))
        with contextlib.suppress(OSError):
            group.rmdir()


def stutter(pid, length):
    """Stops and continues a process for a number of seconds. Returns how often."""
    end, times = time.monotonic() + length, 0
    with contextlib.suppress(OSError):
        while time.monotonic() < end and ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(random.uniform(0, 0.003))
            os.kill(pid, signal.SIGCONT)
            times += 1
            time.sleep(random.uniform(0, 0.006))
    return times


def send(verb, pid, length, args):
    """Has a fault happen to a process, for a number of seconds. Returns how often it could."""
    with contextlib.suppress(OSError):
        if verb in SIGNALS:
            os.kill(pid, SIGNALS[verb])
            if verb == "freeze":
                time.sleep(length)
                os.kill(pid, signal.SIGCONT)
        elif verb == "stutter":
            return stutter(pid, length)
        elif verb == "emfile" and args.all:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            count = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, before[1]))
            time.sleep(length)
            # It may have ended with the fault.
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        elif verb == "cgroup-freeze" and args.freezer:
            with inside(args.freezer, pid, after=[("cgroup.freeze", "1")]) as group:
                time.sleep(length)
                (group / "cgroup.freeze").write_text("0")
        elif verb == "enomem" and args.memory:
            where, file = args.memory
            with inside(where, pid, before=[(file, str(int(length * 500_000)))]):
                time.sleep(length)
        else:
            return False
        return True
    return False


def carrier(run):
    """Returns the options of a job's carrier."""
    clock = f"unshare -T --monotonic {run.clock} --boottime {run.clock} " * bool(run.clock)
    script = {"ssh": SSH, "slow": PIPES}.get(run.carrier, PIPES if run.reattach else "")
    pump = f"{run.args.slow} {run.pieces}" if run.carrier == "slow" else "cat"
    pathlib.Path(run.path("carrier")).write_text(script.format(pump=pump, clock=clock, ssh=run.args.ssh, mark="=".join(run.mark)))
    options = ["--carrier", "tcp:127.0.0.1"] * (run.carrier == "tcp")
    return [*options, "--rsh", f"sh {run.path('carrier')} %h" if script else f"env NODE=%h {clock}sh -c"]


def tool(reader, pid, run):
    """Returns the command of a reader in C or Python."""
    words = [run.args.tool] if reader["tool"] == "c" else [run.args.python, f"{HERE}/history_tool.py"]
    channels = sum(CHANNELS[channel] for channel in reader["channels"])
    ranks = reader["ranks"] if len(reader["ranks"]) < len(run.hosts) and not reader["agent"] else []
    return [*words, str(pid), run.sockets, reader.get("nspace", f"job{run.seed}"), str(channels), *map(str, ranks)]


def sshd(directory):
    """Starts a server of OpenSSH on a port of this node. Returns its process."""
    for name in ("id", "hostkey"):
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", f"{directory}/{name}"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server, client = pathlib.Path(directory, "sshd_config"), pathlib.Path(directory, "ssh_config")
    server.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {directory}/hostkey\nAuthorizedKeysFile {directory}/id.pub\nStrictModes no\n"
        "UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\nMaxStartups 200\n")
    client.write_text(
        f"Host h*\n HostName 127.0.0.1\n Port {port}\n IdentityFile {directory}/id\n IdentitiesOnly yes\n BatchMode yes\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n")
    if not os.getuid():
        os.makedirs("/run/sshd", exist_ok=True)
    path = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    process = subprocess.Popen([path or "sshd", "-D", "-e", "-f", server], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(50):
        if subprocess.run(["ssh", "-F", client, "h0", "true"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return process
        time.sleep(0.1)
    process.kill()
    raise OSError("no connection to a server on this node")


def prepare(args, directory, ends):
    """Finds out what this system has, and sets it in `args`. Prints what it lacks. Adds to `ends` what is to be ended."""
    def build(name, *options):
        subprocess.run(["cc", "-O2", "-o", f"{directory}/{name}", f"{HERE}/history_{name}.c", *options], check=True)
        return f"{directory}/{name}"

    def build_tool():
        library, header = os.path.dirname(args.iof), f"{HERE}/../engine/c/include"
        if not os.path.exists(f"{library}/libiof_c.so"):
            raise OSError(f"no libiof_c.so beside {args.iof} (cargo build -p iof-c)")
        os.symlink(f"{library}/libiof_c.so", f"{directory}/libiof.so.0")
        return build("tool", f"-I{header}", f"{directory}/libiof.so.0", f"-Wl,-rpath,{directory}")

    def find_python():
        subprocess.run([args.python, "-c", "import iof"], check=True, capture_output=True)
        return args.python

    def find_torchrun():
        torchrun = os.path.join(os.path.dirname(args.python or ""), "torchrun")
        if not args.python or not os.path.exists(torchrun):
            raise OSError(f"no torchrun beside {args.python}, which has no iof or no torch (.ci/torch)")
        subprocess.run([args.python, "-c", "import iof.torchrun"], check=True, capture_output=True)
        return torchrun

    def memory():
        for file in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError):
                return cgroup(file), file
        raise OSError("no cgroup with a limit of memory can be made")

    def start_sshd():
        process = sshd(directory)
        ends.callback(process.wait)
        ends.callback(process.terminate)
        return f"{directory}/ssh_config"

    def clocks():
        return not subprocess.run(["unshare", "-T", "--monotonic", "1000", "true"], check=True, capture_output=True).returncode

    args.rank, args.slow, args.left_out = build("rank"), build("slow"), set()
    wanted = {
        "disks": own_mounts, "tool": build_tool, "python": find_python, "torchrun": find_torchrun, "freezer": lambda: cgroup("cgroup.freeze"), "memory": memory,
        "ssh": start_sshd, "clocks": clocks}
    for name, find in wanted.items():
        try:
            if not args.all and name in ("tool", "python", "torchrun", "disks", "freezer", "memory", "clocks"):
                raise OSError("without --all")
            setattr(args, name, find())
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"left out: {name}: {error}", flush=True)
            setattr(args, name, None)
            args.left_out.add(name)
