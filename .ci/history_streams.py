"""What ranks wrote, by their logs, and the positions of readers in it. A part of history_check.py: shares no code with the product."""

import re
import zlib

CHANNELS = {"o": "stdout", "e": "stderr", "d": "stddiag"}
# The beginning of each line of a text: its rank, its channel and its number.
LABEL = re.compile(rb"(\d+)([oed])\d+\. ")


class Failure(Exception):
    """A defect, with the reader and the place in the stream."""


def lines(raw):
    """Splits at newlines alone."""
    return re.findall(rb"[^\n]*\n|[^\n]+\Z", raw)


def common(one, other):
    """The number of first bytes that are the same."""
    return next((index for index, (left, right) in enumerate(zip(one, other)) if left != right), min(len(one), len(other)))


class Stream:
    """What a rank wrote to a channel: `low` to `high` bytes of `data`, since a killed rank does not know its last write."""

    def __init__(self, rank, channel, host, data):
        self.rank, self.channel, self.host, self.data = rank, channel, host, data
        self.low = self.high = 0
        self.pid = None

    def __str__(self):
        return f"rank {self.rank} {self.channel}"


class Rank:
    """The exit code of a rank, if it is known, and its streams, by its log."""

    def __init__(self, number, host, log, data):
        self.code, self.pid, pending = None, None, None
        self.streams = {channel: Stream(number, channel, host, data[channel]) for channel in CHANNELS.values()}
        for kind, *words in map(str.split, log.decode().splitlines()):
            if kind == "w":
                pending, (offset, length, crc) = self.streams[words[0]], map(int, words[1:])
                if offset != pending.low or zlib.crc32(pending.data[offset : offset + length]) != crc:
                    raise Failure(f"log of {pending} at offset {offset}: expected offset {pending.low} and the hash of its data")
                pending.high = offset + length
            elif kind == "r":
                pending.low += max(int(words[0]), 0)
                pending.high = pending.low
            elif kind == "p":
                self.pid = int(words[0])
            else:
                self.code = int(words[0]) + (128 if kind == "k" else 0)
        for stream in self.streams.values():
            stream.pid = self.pid


class Track:
    """The position of a reader in a stream."""

    def __init__(self, reader, stream, may_lose, may_cut=False, may_lose_first=False):
        self.reader, self.stream, self.may_cut = reader, stream, may_cut
        self.loses, self.loses_first = may_lose, may_lose_first
        self.position = self.delivered = self.lost = 0
        # What a text leaves open: how much is lost, since a newline at a gap may be of the stream or added; where that begins,
        # since what follows a gap may be the same as the first missing bytes; how much is lost at the end of a killed rank.
        self.slack = self.shift = self.tail = 0
        self.first_gap, self.gap_end, self.broken, self.cut_at, self.ended = None, None, None, None, False

    def __str__(self):
        return str(self.stream)

    @property
    def may_lose(self):
        return self.loses or self.loses_first and self.delivered == 0

    def fail(self, offset, expected, got):
        raise Failure(f"{self.reader}: {self.stream} at offset {offset}: expected {expected}, got {got}")

    def take(self, data):
        """Takes the next bytes."""
        at = self.position
        wanted = self.stream.data[at : at + len(data)]
        if data != wanted:
            first = common(data, wanted)
            self.fail(at + first, wanted[first : first + 40], data[first : first + 40])
        if at + len(data) > self.stream.high or self.broken is not None:
            self.fail(min(at, self.stream.high), "the end", data[max(self.stream.high - at, 0) :][:40])
        if data and self.cut_at == at and not self.may_cut:
            self.fail(at, "a line in one piece", data[:40])
        self.position += len(data)
        self.delivered += len(data)

    def gap(self, offset, lost):
        """Takes a gap of this offset and length."""
        if not self.may_lose or self.broken is not None:
            self.fail(self.position, "no gap", f"one of {lost} bytes at {offset}")
        if offset != self.position or lost <= 0 or offset + lost > self.stream.high:
            self.fail(self.position, f"a gap here, before the end at {self.stream.high}", f"one of {lost} bytes at {offset}")
        self.first_gap = offset if self.first_gap is None else self.first_gap
        self.position += lost
        self.lost += lost
        self.gap_end = self.position

    def text(self, line):
        """Takes a line of text, or a part of one. Its newline may have been added, because the line was cut."""
        data, at, end, part = self.stream.data, self.position, self.stream.high, line.removesuffix(b"\n")
        is_whole = data.startswith(line, at, end)
        if not is_whole and not data.startswith(part, at, end):
            found, cut = (data.find(text, at, end) if self.may_lose else -1 for text in (line, part))
            if cut < 0:
                self.take(line)
            is_whole = found == cut
            self.slack, self.shift = self.slack + 1, 16
            self.gap(at, cut - at)
        self.take(line if is_whole else part)
        self.cut_at = None if is_whole and line.endswith(b"\n") else self.position

    def finish(self, has_offsets):
        """Checks the end of a stream whose reader got all that there is."""
        stream, end = self.stream, self.position
        if self.may_lose and not has_offsets and end <= stream.high:
            # What is missing at the end is seen in the messages alone.
            self.first_gap = end if self.first_gap is None and end < stream.high else self.first_gap
            self.lost += max(stream.low - end, 0)
            self.slack += self.cut_at == end
            self.tail = stream.high - max(stream.low, end)
        elif not stream.low <= end <= stream.high:
            self.fail(end, f"{stream.low - end} more bytes", "the end")
        else:
            stream.low = stream.high = end
