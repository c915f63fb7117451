"""Checks the history of a job: what its ranks wrote against what each reader got. Shares no code with the product.

`.ci/history` records and reads histories: the job, the log of each rank (history_rank.c) with the data that it had to write,
and the outputs of each reader.

For each reader and stream: the bytes are those that were written, in their order and once; a gap has the offset and the
length of what is missing; delivered + lost = produced at the end, and all readers agree on the end; no line is mixed with
another; the messages and the exit codes are those that fit.

With a full disk, a reader has the first bytes of each output there and all of the others, says so, and its exit code is not 0;
`iof run` ends its job. A tool that lacked files or memory for a while may fail, if it says so and its exit code is not 0. So may
a launcher that lacked files for a while, which ends its job. A launcher with too few files at its start does all, or does not
start its job, and says so. Exit code 2 is that of a job of which no rank has run, 124 that of one with a time limit. Faults of
other kinds change no byte but those of what was killed or lost. history_check_torch.py has what is different under torchrun.
"""

import base64
import json
import re

import history_check_torch
from history_streams import CHANNELS, LABEL, Failure, Rank, Stream, Track, common, lines

MESSAGE = re.compile(rb"^iof: [^\n]*\n?", re.M)
TAG = re.compile(rb"\[(?:([^\],]+),)?(\d+)\](?:\[[^\]:]*:(\d+|unknown)\])?<(stdout|stderr|stddiag)>: ")
MISSING = re.compile(
    r"iof: (?:(\S+): )?job \S+: ranks? (\S+) (stdout|stderr|stddiag): (\d+) bytes are missing "
    r"(?:at offset (\d+)|in \d+ gaps( in total)?(?:, the first at offset (\d+))?)(?: in its file on \S+)?$")
SUMMARY = re.compile(r"iof: summary: .*; (\d+) bytes forwarded, (\d+) lost(?:, at least \d+ missing from lost nodes)?$")
UNFINISHED = re.compile(r"lost the engine .* before (\d+) of its streams .* after the first (\d+) bytes")
BROKEN = re.compile(r"(\d+) streams? (?:is|are) broken.* at least (\d+) bytes")
FULL = "No space left"
FEW = re.compile("Too many open files|limit on open files")
# The result of a job does not depend on its account.
ACCOUNT = "cannot report timings and summary"
# A stream without memory keeps nothing: a policy that may lose bytes loses the first ones, before any reader is there.
NO_MEMORY = b"no memory for the first bytes of a stream"
LOST = re.compile(r"node \S+ is lost|not finished after")
GONE = re.compile(r"no (running )?engine|lost (the )?engine|no jobs|has ended|cannot connect")

WAITING = re.compile(rb"^(?:iof: |\{\"type\":\"message\").*waiting for the agents.*\n", re.M)
UNSTARTED = re.compile(rb"^(?:iof: |\{\"type\":\"message\").*(not started after|too few files|too many open files to start|cannot start|did not start|start was interrupted)", re.M)


class Reader:
    """A reader of the history: its tracks, messages and end."""

    def __init__(self, job, record, ranks):
        self.job, self.record, self.name, self.outputs = job, record, record["name"], record["outputs"]
        self.has_offsets = record["format"] == "json"
        # All objects are in one output.
        self.merged = record["merged"] or self.has_offsets
        # A tool of one attempt of several, of which some streams are not the engine's: it sees them as empty.
        self.base = base = record.get("base", 0)
        existing = record.get("streams")
        self.nspace = record.get("nspace", job["nspace"])
        self.tracks = {}
        for rank, channel in [(rank, channel) for rank in record["ranks"] for channel in record["channels"]]:
            is_there = not existing or [rank + base, channel] in existing
            stream = ranks[rank + base].streams[channel] if is_there else Stream(rank + base, channel, None, b"")
            # What has not come for a tenth of a second of a lone rank, too (docs/src/output.md).
            is_alone = len(record["ranks"]) == 1 and record["format"] in ("plain", "tag")
            may_cut = is_alone or stream.host in job.get("silent_hosts", [])
            self.tracks[rank, channel] = Track(self.name, stream, record["may_lose"], may_cut, job["lost_first"])
        # Interrupted when all ranks have ended, or with a full disk, `iof run` does not wait for what nodes have yet to send to
        # tools. Nor does it wait for one that stands still when another one is lost.
        is_tool = record["code"] != 0 and not (record["launcher"] or record["agent"])
        self.is_left = is_tool and (job["interrupted"] and job["code"] == -2 or job["full"])
        hosts = {track.stream.host for track in self.tracks.values()} - {None}
        self.lost_hosts = hosts if self.is_left or job["few"] else job["lost_hosts"]
        if is_tool and self.lost_hosts:
            self.lost_hosts = {*self.lost_hosts, *job["frozen_hosts"]}
        # The sums of streams that were missed entirely, by channel, and the ranks of which an object tells the start or the exit.
        self.hidden, self.begun, self.exited = {}, set(), set()
        self.ranks = ranks
        said = MESSAGE.findall(self.outputs["err"] + self.outputs["out"] * self.merged)
        self.messages = [message.decode(errors="replace").strip() for message in said]
        if self.has_offsets:
            # That the output has failed is on stderr.
            objects = re.findall(rb'^\{"type":"message".*\}$', self.outputs["err"] + self.outputs["out"], re.M)
            self.messages += ["iof: " + json.loads(found)["text"] for found in objects]
        # An interpreter has messages of its own.
        self.text = self.outputs["err"].decode(errors="replace") if record["tool"] else "\n".join(self.messages)
        # The job goes on: it waits, or loses bytes by its policy.
        allowed = (ACCOUNT, NO_MEMORY.decode())
        lacked = [line for line in self.text.splitlines() if FEW.search(line) and not any(text in line for text in allowed)]
        self.is_full = FULL in self.text or record["hindered"] and record["launcher"] and bool(lacked)
        # Otherwise it was killed or given up, and what it got may end anywhere.
        is_ended = not record["killed"] and not job["unstarted"]
        # Interrupted when all ranks have ended, `iof run` does not wait for what nodes have yet to send, and says so.
        is_given_up = "has accepted nothing for" in self.text or job["interrupted"] and "not counting an output that failed" in self.text
        self.is_whole = is_ended and (
            not (self.is_full or is_given_up) if record["launcher"] else
            record["code"] == 0 or bool(BROKEN.search(self.text)) and not GONE.search(self.text))
        # A full disk has the stdout of texts alone.
        is_apart = record["launcher"] and record["small"] and record["format"] in ("plain", "tag") and not FEW.search(self.text)
        self.is_whole_elsewhere = self.is_whole or is_ended and is_apart and not is_given_up

    def fail(self, expected, got):
        raise Failure(f"{self.name}: expected {expected}, got {got}")

    def on(self, output):
        """The tracks that an output may have."""
        return [track for track in self.tracks.values() if self.merged or (track.stream.channel == "stdout") == (output == "out")]

    def track(self, rank, channel, output):
        found = self.tracks.get((int(rank), channel))
        return found if found in self.on(output) else self.fail(f"the streams of {output}", f"rank {rank} {channel}")

    def read(self):
        kind = self.record["format"]
        if kind == "files":
            if stranger := MESSAGE.sub(b"", self.outputs["out"] + b"\n" + self.outputs["err"]).strip():
                self.fail("messages alone beside files", stranger[:120])
            return [self.read_one(track, self.outputs[f"{rank}.{name}"]) for (rank, name), track in self.tracks.items()]
        for output, raw in self.outputs.items():
            if kind == "plain" and len(self.on(output)) == 1:
                rest = MESSAGE.sub(b"", raw) if self.merged or output == "err" else raw
                self.read_one(*self.on(output), rest, not raw.endswith(rest))
            elif kind == "plain":
                self.read_plain(output, raw)
            elif output == "out" or not self.record["tool"]:
                self.read_lines(output, raw, self.object if kind == "json" else self.tagged)

    def read_one(self, track, raw, is_added=False):
        """Reads the only stream of an output without tags: its bytes, without those of its gaps."""
        data, at = track.stream.data, 0
        while track.may_lose and at + (same := common(raw[at:], data[track.position :])) < len(raw):
            track.take(raw[at : at + same])
            at, track.shift = at + same, 40
            found = data.find(raw[at : at + 40], track.position)
            # A message that follows a part of a line has added its newline.
            if found < 0 or raw[at:] == b"\n" and is_added:
                break
            track.gap(track.position, found - track.position)
        track.take(raw[at:].removesuffix(b"\n" if is_added and not track.stream.data.startswith(raw[at:], track.position) else b""))

    def read_lines(self, output, raw, take):
        for line in lines(raw):
            if not line.startswith(b"iof: ") and not take(output, line):
                # The last line of a reader that was killed may be torn.
                if self.is_whole or not raw.endswith(line) or line.endswith(b"\n"):
                    self.fail("a whole line", line[:120])

    def object(self, output, line):
        """Takes a line of JSON. Returns whether it is one."""
        try:
            found = json.loads(line)
        except ValueError:
            return False
        if found["type"] == "message":
            return True
        if found["nspace"] != self.nspace:
            self.fail(f"the job {self.nspace}", line[:120])
        if found["type"] in ("rank_start", "exit", "job_end"):
            return self.event(found, line)
        if found["rank"] is None:
            self.hidden[found["channel"]] = self.hidden.get(found["channel"], 0) + found["lost"]
            return True
        track, offset = self.track(found["rank"], found["channel"], output), found["offset"]
        if track.ended and self.record.get("resumed") and found["type"] == "end" and offset == track.position:
            return True
        if track.ended:
            track.fail(offset, "nothing behind the end of a stream", line[:120])
        if "lost" in found:
            track.gap(offset, found["lost"])
            return True
        if offset != track.position:
            track.fail(track.position, "an object with this offset", f"one with {offset}")
        if "missing" in found:
            track.broken = found["missing"]
            if track.stream.host not in self.lost_hosts or offset + track.broken > track.stream.high:
                track.fail(offset, f"a broken end only on a lost node, within {track.stream.high} bytes", line[:120])
            return True
        if found["type"] == "end":
            track.ended = True
            counts = found.get("delivered", track.delivered), found.get("produced", offset)
            return counts == (track.delivered, offset) or track.fail(offset, f"{track.delivered} and {offset} bytes", line[:160])
        # An agent has the name of this machine. Nobody knows the pid of a rank whose start was not reported.
        host = found.get("host") if self.record.get("agent") or not track.stream.host else track.stream.host
        if found.get("pid") is not None and (found["host"], found["pid"]) != (host, track.stream.pid):
            track.fail(offset, f"pid {track.stream.pid} on {host}", line[:160])
        decode = {"base64": base64.b64decode, "hex": bytes.fromhex}.get(found.get("encoding"), str.encode)
        data = decode(found["data"])
        if b"\n" in data[:-1] and not self.record["tool"] or not data:
            track.fail(offset, "one line in an object", data[:40])
        track.take(data)
        return True

    def event(self, found, line):
        """Takes an object about a rank or the end of the job."""
        if found["type"] == "job_end":
            # A signal ends the command, an output that fails makes its exit code 1, and an agent has a part of the job.
            is_known = self.job["code"] >= 0 and self.job["code"] != 1 and not (self.record.get("agent") or self.job.get("torchrun"))
            return not is_known or found["code"] in (self.job["code"], None) or self.fail(
                f"the exit code {self.job['code']}", line[:120])
        rank, seen = found["rank"], self.begun if found["type"] == "rank_start" else self.exited
        # One that resumes is told what has happened.
        if rank in seen and not self.record.get("resumed"):
            self.fail(f"one {found['type']} of rank {rank}", line[:120])
        seen.add(rank)
        code = found.get("code") if found.get("signal") is None else 128 + found["signal"]
        wanted = self.ranks[rank + self.base].code
        # A rank that was killed may have ended before, and the exit of one on a lost node is not known.
        if found["type"] == "exit" and None not in (code, wanted) and code != wanted:
            self.fail(f"the exit code {wanted} of rank {rank}", line[:120])
        return True

    def tagged(self, output, line):
        """Takes a line with a tag. Returns whether it is one."""
        if not (tag := TAG.match(line)):
            return False
        job, rank, pid, channel = (word and word.decode() for word in tag.groups())
        track = self.track(rank, channel, output)
        if job and job != self.nspace or pid not in (None, "unknown", str(track.stream.pid)):
            track.fail(track.position, f"the tag of pid {track.stream.pid} of {self.nspace}", line[:120])
        track.text(line[tag.end() :])
        return True

    def read_plain(self, output, raw):
        """Reads several streams without tags: each line begins with its label."""
        at = 0
        while at < len(raw):
            if message := MESSAGE.match(raw, at):
                at = message.end()
                continue
            label = LABEL.match(raw, at)
            tracks = [self.track(int(label[1]) - self.base, CHANNELS[label[2].decode()], output)] if label else self.on(output)
            length = max(self.plain_line(track, raw, at) for track in tracks)
            at += length or self.fail("a line of one of its streams", raw[at : at + 80])

    def plain_line(self, track, raw, at):
        """Takes a line of this stream, or the last part that its rank wrote, and returns the length."""
        data, position = track.stream.data, track.position
        line = data[position : data.find(b"\n", position) + 1]
        if line and raw.startswith(line, at):
            track.take(line)
            return len(line)
        same = common(line, raw[at : at + len(line)])
        # What follows may go on as the rank would have: both begin with the number of a rank.
        for length in range(min(same, max(track.stream.high - position, 0)), 0, -1):
            after = at + length
            can_end = track.may_cut or position + length >= track.stream.low or not self.is_whole and after == len(raw)
            added = raw.startswith(b"\niof: ", after)
            if can_end and (added or after == len(raw) or LABEL.match(raw, after)):
                track.take(line[:length])
                track.cut_at = track.position
                return length + added
        if LABEL.match(raw, at):
            track.fail(position + same, line[same : same + 40], raw[at + same : at + same + 40])
        return 0

    def finish(self):
        """Checks the ends, the messages and the exit code."""
        for channel, lost in self.hidden.items() if self.is_whole else ():
            # The tool in Python does not get the channel.
            missed = [track.stream for key, track in self.tracks.items() if channel in (key[1], None) and track.position == 0]
            # What a lost node had not sent is not counted.
            low = sum(stream.low for stream in missed if stream.host not in self.lost_hosts)
            if not low <= lost <= sum(stream.high for stream in missed):
                self.fail(f"a gap of {len(missed)} streams of {channel} that were missed", f"one of {lost} bytes")
        for (_, channel), track in self.tracks.items():
            may_break = track.stream.host in self.lost_hosts and self.record["code"] != 0
            may_break &= track.broken is not None or not self.has_offsets
            # After a failure, what a node still has is waited for as long as ranks are until they are killed.
            is_slow = track.stream.host and track.stream.host in self.job.get("silent_hosts", [])
            is_whole = self.is_whole if channel == "stdout" or is_slow else self.is_whole_elsewhere
            if is_whole and not may_break and (track.position or not {channel, None} & set(self.hidden)):
                track.finish(self.has_offsets)
            # A node that has ended sends nothing to a tool that comes then. The tool is told of bytes that it does not have.
            start, resumed = 1 if self.record["tool"] == "python" else 0.3, self.record.get("resumed", False)
            is_over = resumed or self.record["began"] + start > self.job["last_write"]
            is_over &= track.stream.host is not None and not self.record["launcher"]
            is_missed = is_over and (track.stream.high == 0 or track.gap_end == track.position or resumed)
            is_missed |= track.position == 0 and bool(self.hidden or self.record["hindered"])
            if is_whole and self.has_offsets and not (may_break or track.ended or is_missed):
                self.fail(f"the end of {track}", "none")
        # One that resumes sums up what it has seen itself.
        if self.is_whole and not self.record["tool"] and not self.record.get("resumed"):
            self.check_messages()
        if not self.record["launcher"] and not self.record["killed"]:
            self.check_pull_code()

    def check_messages(self):
        """Compares the messages about gaps and the summary with all that was read."""
        reported, totals, seen = {}, {}, set()
        found = filter(None, map(MISSING.match, self.messages))
        for host, ranks, channel, lost, single, is_total, several in (report.groups() for report in found):
            into, key = totals if is_total else reported, (host, channel, ranks == "*")
            into[key] = into.get(key, 0) + int(lost)
            track = self.tracks.get((int(ranks), channel)) if ranks.isdigit() else None
            is_hidden = track and channel in self.hidden and track.position == 0
            if track and track not in seen and not is_total and not is_hidden:
                first = int(single or several)
                if track.first_gap is None and track.stream.host in self.lost_hosts:
                    # It may have ended there.
                    track.first_gap = track.position
                if track.first_gap is None or abs(track.first_gap - first) > track.shift:
                    track.fail(track.first_gap, "a message about the first gap here", f"one at {first}")
            seen.update([track] if track else [other for key, other in self.tracks.items() if key[1] == channel])
        for key, lost in totals.items():
            if lost != reported.get(key):
                self.fail(f"the sum {reported.get(key)} of the messages about {key[1]} of {key[0]}", f"{lost} in total")
        for channel in self.record["channels"]:
            tracks = [track for key, track in self.tracks.items() if key[1] == channel]
            told = sum(lost for key, lost in reported.items() if key[1] == channel)
            self.check_lost(told, tracks, self.hidden.get(channel, 0))
        summary, tracks = next(filter(None, map(SUMMARY.match, self.messages)), None), self.tracks.values()
        is_told = summary or ACCOUNT in self.text or self.record["hindered"] and FEW.search(self.text)
        if self.record["launcher"] and not (is_told or self.job["unstarted"]):
            self.fail("a summary", "none")
        if summary and not self.lost_hosts:
            written, slack = sum(track.delivered for track in tracks), sum(track.slack for track in tracks)
            if abs(int(summary[1]) - written) > slack:
                self.fail(f"a summary of {written} bytes", summary[0])
            self.check_lost(int(summary[2]), tracks, 0)

    def check_lost(self, told, tracks, hidden):
        sure = [track for track in tracks if track.stream.host not in self.lost_hosts]
        lost, slack, tail = (sum(getattr(track, name) for track in sure) for name in ("lost", "slack", "tail"))
        most = slack + tail
        if self.lost_hosts:
            # How much of a lost node was told is not known: at least all of the others.
            hidden, most = 0, told
        if not -slack <= told - lost - hidden <= most:
            self.fail(f"messages about {lost + hidden} lost bytes of {', '.join(map(str, tracks))}"[:200], f"ones about {told}")

    def check_pull_code(self):
        code, broken, unfinished = self.record["code"], BROKEN.search(self.text), UNFINISHED.search(self.text)
        ends = sum(track.broken is not None for track in self.tracks.values())
        if broken and self.has_offsets and ends != int(broken[1]):
            self.fail(f"a message about {ends} broken streams", broken[0])
        if self.is_full or self.record["hindered"] and self.text and not broken:
            return code != 0 or not self.is_full or self.fail("an exit code for a full disk", code)
        if code == 0 or broken:
            is_right = code == 1 and self.lost_hosts if broken else True
            return is_right or self.fail("exit code 1 for broken streams of lost nodes alone", f"{code}, {self.text}")
        received = sum(track.position + track.slack for track in self.tracks.values())
        # A text does not show where its last gap ends.
        last = [track.stream.high - track.position for track in self.tracks.values() if track.may_lose and not self.has_offsets]
        if unfinished and int(unfinished[2]) > received + sum(last):
            self.fail(f"at most {received} bytes of unfinished streams", unfinished[0])
        # The engine has gone: it was killed, had no patience with a slow reader, or ended before the tool came.
        was_late = self.record["began"] + 1 > self.record.get("last_write", self.job["last_write"])
        was_late &= not received or self.record.get("resumed", False)
        # So has that of an agent that was killed.
        is_cut = self.job["killed"] or self.is_left or self.record["slow"] or self.record["agent"] and self.lost_hosts
        if not (is_cut or was_late) or code not in (1, 2) or not GONE.search(self.text):
            self.fail("exit code 0", f"{code}, {self.text}")


def check_code(job, ranks, launcher):
    """Checks the exit code of the launcher against the ends of the ranks."""
    codes = [rank.code for rank in ranks.values()]
    failed, lost = {code for code in codes if code}, {1} if job["lost_hosts"] else set()
    # A rank that was killed, as one is that does not end after an interrupt, may have ended before.
    killed = {137} if job["killed_ranks"] or job["interrupted"] else set()
    failed |= killed if None in codes else set()
    # That of a job of which nothing was started. Invalid input has it, and so have nodes that can't start ranks.
    refused = set() if any(rank.pid for rank in ranks.values()) else {2}
    over = {124} if job["timeout"] else set()
    if job["killed"]:
        allowed = {-9}
    elif job["interrupted"]:
        # An agent that was killed may have sent everything.
        allowed = {130, -2} | failed | lost | (set() if failed or None in codes else {0})
        # The time limit may have come first.
        allowed |= over
    elif job["unstarted"] or job["timeout"] and None in codes:
        allowed = over | refused | failed | lost
    else:
        allowed = (failed or {0}) | lost | killed | over
        # A full disk ends the job, and so may a want of files.
        if not failed | lost and None in codes and not launcher.is_full and not job["few"]:
            raise Failure(f"launcher: expected the end of each rank, got none of rank {codes.index(None)}")
    if not launcher.is_whole and not job["killed"]:
        allowed = allowed - {0} | {1} | refused
    # An agent that is killed at the end may have sent everything.
    if LOST.search(launcher.text) and not job["killed"]:
        allowed = allowed - {0}
    if job["code"] not in allowed:
        raise Failure(f"launcher: expected an exit code of {sorted(allowed)}, got {job['code']}")


def check(history):
    """Returns a line for each reader with a defect."""
    found = []
    launcher = next(record for record in history["readers"] if record["launcher"])
    said = launcher["outputs"]["err"] + launcher["outputs"]["out"]
    # Or it was interrupted before, and no rank has written anything.
    is_early = history["job"]["interrupted"] and not WAITING.sub(b"", said) and not history["job"]["last_write"]
    job = {**history["job"], "unstarted": is_early or bool(UNSTARTED.search(said)), "full": FULL.encode() in said}
    # It had started, and lacked files for a while. Those that it lacks at its start it asks for before.
    job["few"] = launcher["hindered"] and bool(FEW.search(said.decode(errors="replace")))
    job["lost_hosts"] = history["hosts"] if job["unstarted"] else job["lost_hosts"]
    job["said"], job["hindered"] = said, launcher["hindered"]
    job["lost_first"] = launcher["may_lose"] and NO_MEMORY in said
    # Under torchrun, a full disk changes nothing but the files that are on it.
    job["full"] &= not job.get("torchrun")
    try:
        ranks = {number: Rank(number, *rest) for number, rest in history["ranks"].items()}
    except Failure as failure:
        return [str(failure)]
    # The readers with offsets find the ends on which the others must agree.
    for record in sorted(history["readers"], key=lambda record: (record["format"] != "json", not record["launcher"])):
        try:
            kinds = {"console": history_check_torch.Console, "files": history_check_torch.Files}
            reader = kinds.get(record.get("torchrun"), Reader)(job, record, ranks)
            reader.read()
            reader.finish()
            if record.get("torchrun") == "console":
                history_check_torch.check_code(job, ranks)
            elif record["launcher"] and not job.get("torchrun"):
                check_code(job, ranks, reader)
        except Failure as failure:
            found.append(str(failure))
    return found
