"""Checks what users of torchrun get with the logs specs of iof: its console and its files. A part of history_check.py.

Rank R of W workers is number A * W + R in attempt A. The console has whole lines of all attempts, with a prefix if they are
also in a file, and between them the messages of torchrun on stderr. A stream of a worker that was killed ends anywhere, and the
console then adds a newline. A file or a stdout on a full disk has the first bytes, a message says so, and nothing else changes.
Exit code 0 means that all workers of the last attempt have succeeded, 1 that one has failed and no attempt was left.
"""

import re

from history_streams import CHANNELS, LABEL, Failure, Track, lines

FULL = re.compile(rb"^iof: \S+/attempt_(\d+)/(\d+)/(stdout|stderr)\.log: No space left on device: the rest is not written to it$", re.M)
FULL_CONSOLE = re.compile(rb"^iof: (stdout|stderr): No space left on device: the rest of .* is not written to it$", re.M)
# Nothing of these is for users.
INTERNAL = re.compile(rb"^.*(?:Exception in thread|Exception ignored|panicked at).*", re.M)


class Output:
    """An output of torchrun, with the position in each stream that it has."""

    def __init__(self, job, record, ranks):
        self.job, self.record, self.name, self.outputs = job, record, record["name"], record["outputs"]
        self.tracks = {(number, channel): Track(self.name, ranks[number].streams[channel], False) for number, channel in self.streams()}
        self.is_whole = not record["killed"]
        workers = job["torchrun"]["workers"]
        found = FULL.findall(job["said"])
        self.full = {(int(attempt) * workers + int(rank), channel.decode()) for attempt, rank, channel in found}

    def streams(self):
        return map(tuple, self.record["streams"])

    def fail(self, expected, got):
        raise Failure(f"{self.name}: expected {expected}, got {got}")


class Files(Output):
    """A file for each stream that is redirected, which may be on a small disk."""

    def read(self):
        tracks = {f"{number}.{channel}": track for (number, channel), track in self.tracks.items()}
        for name, raw in self.outputs.items():
            if name in tracks:
                tracks[name].take(raw)
            elif raw:
                self.fail(f"no file of {name}", raw[:40])

    def finish(self):
        for key, track in self.tracks.items():
            if key not in self.full and self.is_whole:
                track.finish(True)
            elif key in self.full and track.position == track.stream.high:
                track.fail(track.position, "a file with less than its rank wrote", "all of it and a message about a full disk")
        if self.full - set(self.tracks) or self.full and not self.record["small"]:
            self.fail("no message about a full disk", self.full)


class Console(Output):
    """Stdout and stderr of torchrun."""

    def __init__(self, job, record, ranks):
        super().__init__(job, record, ranks)
        self.prefix = re.compile(re.escape(record["prefix"].encode()).replace(b"RANK", rb"(\d+)"))
        self.prefixed = set(map(tuple, record["prefixed"]))
        self.full_console = b"stdout" in FULL_CONSOLE.findall(job["said"]) and record["small"]

    def on(self, output, is_prefixed):
        """The tracks that may be in an output, those of the first attempts first."""
        channels = ["stdout", "stderr"] if self.record["merged"] else [{"out": "stdout", "err": "stderr"}[output]]
        return [track for key, track in self.tracks.items() if key[1] in channels and (key in self.prefixed) == is_prefixed]

    def read(self):
        for output, raw in self.outputs.items():
            found = lines(raw)
            for at, line in enumerate(found):
                is_torn = (not self.is_whole or output == "out" and self.full_console) and at == len(found) - 1 and not line.endswith(b"\n")
                self.line(output, line, is_torn)

    def line(self, output, line, is_torn):
        """Takes a line of a rank, or a message."""
        prefix, workers = self.prefix.match(line), self.job["torchrun"]["workers"]
        if prefix:
            tracks = [track for track in self.on(output, True) if track.stream.rank % workers == int(prefix[1])]
            line = line[prefix.end() :]
        else:
            tracks = self.on(output, False)
        # The whole line of a stream goes before the end of another one to which a newline was added.
        wanted = next((track for track in tracks if self.fits(track, line)), None)
        wanted = wanted or next((track for track in tracks if self.fits(track, line.removesuffix(b"\n"), True)), None)
        if wanted:
            return wanted.text(line)
        label = LABEL.match(line)
        labelled = label and self.tracks.get((int(label[1]), CHANNELS[label[2].decode()]))
        if labelled or prefix and not is_torn:
            track = labelled or next((track for track in tracks if track.position < track.stream.low), None)
            # Says where the stream is.
            return track.take(line) if track in tracks else self.fail(f"the streams of {output}", line[:80])
        may_be_message = output == "err" or self.record["merged"] or is_torn
        return may_be_message or self.fail("a whole line of a rank", line[:80])

    @staticmethod
    def fits(track, line, is_cut=False):
        """Whether a line is the next one of a stream, or its cut end."""
        stream, end = track.stream, track.position + len(line)
        is_next = line and track.cut_at is None and end <= stream.high and stream.data.startswith(line, track.position)
        return is_next and (end >= stream.low if is_cut else True)

    def finish(self):
        for track in self.tracks.values() if self.is_whole else ():
            if track.stream.channel != "stdout" or not self.full_console:
                track.finish(True)
        for message in re.findall(rb"^iof: .*", self.job["said"], re.M):
            is_full = FULL.match(message) or self.full_console and FULL_CONSOLE.match(message)
            if not (is_full or self.record["hindered"]):
                self.fail("no message but those about a full disk", message)
        if found := INTERNAL.search(self.job["said"]):
            self.fail("messages for users", found[0])


def check_code(job, ranks):
    """Checks the exit code and the attempts against the ends of the ranks."""
    workers = job["torchrun"]["workers"]
    attempts = [[ranks[first + rank] for rank in range(workers)] for first in range(0, len(ranks), workers)]
    begun = [attempt for attempt in attempts if any(rank.pid for rank in attempt)]
    codes = [rank.code for rank in begun[-1]] if begun else [None]
    failed = {1} if any(code != 0 for code in codes) else {0}
    if job["killed"]:
        failed = {-9}
    elif job["interrupted"] or job["hindered"]:
        # A signal may come at the end, when torch or even Python no longer handles it, and torchrun itself may lack files.
        failed |= {1, -2, -15} if job["interrupted"] else {1}
    else:
        # A rank that was killed may have ended before.
        failed |= {1} if job["killed_ranks"] else set()
        if 0 not in failed and len(begun) < len(attempts):
            raise Failure(f"torchrun: expected {len(attempts)} attempts, got {len(begun)}")
    if job["code"] not in failed:
        raise Failure(f"torchrun: expected an exit code of {sorted(failed)}, got {job['code']}")
