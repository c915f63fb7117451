"""Defects that history_check.py has to find: each changes one thing of a right history, as a defect of the product would.

`.ci/history` corrupts each history that it has recorded, at random, and fails if the checker accepts one of them.
"""

import collections
import copy
import json
import re

import history_check
from history_check import LABEL, TAG


def body(reader, line):
    """The index of the rank's bytes in a line."""
    if reader["format"] == "json":
        return line.index(b'"data":"') + 8
    if reader["format"] == "torchrun":
        found = re.match(re.escape(reader["prefix"].encode()).replace(b"RANK", rb"\d+"), line)
        return found.end() if found else 0
    return TAG.match(line).end() if reader["format"] == "tag" else 0


def has_text(reader, line):
    """Whether a line has some bytes of a rank."""
    if reader["format"] == "json":
        return b'"data":"' in line and b'"encoding"' not in line and len(json.loads(line)["data"]) > 8
    if reader["format"] == "torchrun" and not (body(reader, line) or LABEL.match(line)):
        # A message of torchrun.
        return False
    return len(line) - body(reader, line) > 8


def is_gap(reader, line):
    return reader["format"] == "json" and b'"lost":' in line and b'"rank":null' not in line


def is_object(reader, line):
    return reader["format"] == "json" and b'"rank":null' not in line


def is_end(reader, line):
    # A reader may not be told the end of a stream without bytes, and one that resumes is told an end again.
    return not reader.get("resumed") and reader["format"] == "json" and line.startswith(b'{"type":"end"') and not re.search(rb'"offset":0\b', line)


def source(reader, line):
    """The stream of a line, as far as it shows it."""
    if reader["format"] == "json":
        found = json.loads(line)
        return found["rank"], found["channel"]
    label = LABEL.match(line, body(reader, line))
    return label and label.groups()


def of_lines(change, wanted=has_text):
    """Returns a defect of an output: `change` gets its lines and the index of one that is `wanted`."""
    def corrupt(rng, history, reader):
        places = []
        for name, raw in reader["outputs"].items():
            lines = history_check.lines(raw)
            usable = [index for index, line in enumerate(lines) if not line.startswith(b"iof: ") and wanted(reader, line)]
            places += [(name, lines, index) for index in usable]
        if not places:
            return False
        name, lines, index = rng.choice(places)
        before = list(lines)
        change(reader, lines, index)
        reader["outputs"][name] = b"".join(lines)
        return lines != before
    return corrupt


def of_bytes(change):
    """Returns a defect of the bytes of a line: `change` replaces two of them."""
    def corrupt(reader, lines, index):
        line, at = lines[index], body(reader, lines[index]) + 3
        lines[index] = line[:at] + change(line[at : at + 2]) + line[at + 2 :]
    return of_lines(corrupt)


def of_number(pattern, by, wanted):
    """Returns a defect of a number, which the second group of a pattern is."""
    def corrupt(reader, lines, index):
        lines[index] = re.sub(pattern, lambda found: found[1] + b"%d" % (int(found[2]) + by), lines[index], count=1)
    return of_lines(corrupt, wanted)


def of_message(pattern):
    """Returns a defect of a number in a message."""
    def corrupt(rng, history, reader):
        # One that resumes sums up what it has seen itself.
        for name, raw in reader["outputs"].items() if not reader.get("resumed") else ():
            changed = re.sub(pattern, lambda found: found[1] + b"%d" % (int(found[2]) + 100_000), raw, count=1)
            if changed != raw:
                reader["outputs"][name] = changed
                return True
        return False
    return corrupt


def swap_lines(reader, lines, index):
    for other in range(index + 1, len(lines)):
        is_text = not lines[other].startswith(b"iof: ") and has_text(reader, lines[other])
        if is_text and source(reader, lines[index]) and source(reader, lines[other]) == source(reader, lines[index]):
            lines[index], lines[other] = lines[other], lines[index]
            return


def mix_lines(reader, lines, index):
    if index + 1 < len(lines) and not lines[index + 1].startswith(b"iof: "):
        line, half = lines[index], body(reader, lines[index]) + 4
        lines[index : index + 2] = [line[:half], lines[index + 1], line[half:]]


def wrong_code(rng, history, reader):
    job = history["job"]
    code = rng.choice([99, 1, 2] if reader["code"] == 0 else [99, 0])
    # An interrupted job may have ended before. A pull that fails may be right to do so, and one that ends, too.
    if reader["launcher"]:
        is_certain = not job["interrupted"] and not (job.get("torchrun") and (job["killed_ranks"] or reader["hindered"]))
        job["code"] = code if is_certain else 99
    reader["code"] = 99 if reader["code"] else code
    return not reader["killed"]


def is_full(reader):
    return history_check.FULL.encode() in b"".join(reader["outputs"].values())


def full_disk_with_success(rng, history, reader):
    if reader["launcher"]:
        history["job"]["code"] = 0
    reader["code"] = 0
    return not reader["killed"]


def lost_node_with_success(rng, history, reader):
    history["job"]["code"] = reader["code"] = 0
    return True


def text_beside_files(rng, history, reader):
    reader["outputs"]["out"] += b"text\n"
    return reader["format"] == "files"


def missing_summary(rng, history, reader):
    name = "out" if reader["format"] == "json" or reader["merged"] else "err"
    before = reader["outputs"][name]
    reader["outputs"][name] = re.sub(rb"(?m)^.*summary: \d+ ranks? in .*\n", b"", before)
    return reader["launcher"] and reader["outputs"][name] != before


def wrong_hash(rng, history, reader):
    number = rng.choice(list(history["ranks"]))
    host, log, data = history["ranks"][number]
    changed = re.sub(rb"(w \w+ \d+ [1-9]\d* )(\d+)", lambda found: found[1] + b"%d" % (int(found[2]) ^ 1), log, count=1)
    history["ranks"][number] = (host, changed, data)
    return changed != log


def delete(reader, lines, index):
    del lines[index]


def delete_rest(reader, lines, index):
    del lines[index:]


def double(reader, lines, index):
    lines.insert(index, lines[index])


CORRUPTIONS = {
    "missing byte": of_bytes(lambda two: two[:1]),
    "doubled byte": of_bytes(lambda two: two[:1] + two),
    "swapped bytes": of_bytes(lambda two: two[::-1]),
    "missing line": of_lines(delete),
    "doubled line": of_lines(double),
    "swapped lines": of_lines(swap_lines),
    "mixed line": of_lines(mix_lines),
    "missing end": of_lines(delete_rest),
    "longer gap": of_number(rb'("lost":)(\d+)', 1, is_gap),
    "later gap": of_number(rb'("offset":)(\d+)', 1, is_gap),
    "missing gap": of_lines(delete, is_gap),
    "later object": of_number(rb'("offset":)(\d+)', 1, is_object),
    "wrong message of a gap": of_message(rb"(\w: )(\d+)(?= bytes are missing)"),
    "wrong summary": of_message(rb"(; )(\d+)(?= bytes forwarded, \d+ lost\n)"),
    "wrong exit code": wrong_code,
    "wrong hash of a write": wrong_hash,
    "wrong count of an end": of_number(rb'("delivered":)(\d+)', 1, lambda reader, line: b'"delivered":' in line),
    "missing end of a stream": of_lines(delete, is_end),
    "doubled end of a stream": of_lines(double, is_end),
    "wrong code of an exit": of_number(
        rb'("type":"exit".*?"code":)(\d+)', 1, lambda reader, line: b'"type":"exit"' in line and b'"code":null' not in line),
    "missing summary": missing_summary,
    "text beside files": text_beside_files,
    "full disk with exit code 0": full_disk_with_success,
    "lost node with exit code 0": lost_node_with_success,
}
# What a system may lack.
NEEDS = {"wrong count of an end": "python", "full disk with exit code 0": "disks"}


def must_show(history, reader):
    """Whether a reader got all that there is, so that each defect shows. One with a full disk got less."""
    given_up = any(text in b"".join(reader["outputs"].values()) for text in (b"accepted nothing", b"was given up", b"not started after"))
    is_whole = reader["launcher"] or reader["code"] == 0
    is_full_here = is_full(reader) if not reader.get("torchrun") else reader["small"] and any(map(is_full, history["readers"]))
    return is_whole and not (reader["killed"] or given_up or is_full_here or reader["hindered"] or history["job"]["lost_hosts"])


def may_end(history):
    """Whether a rank was killed in a write, so that nobody knows how much of it there must be."""
    return any(log.splitlines()[-1].startswith(b"w") for _, log, _ in history["ranks"].values() if log)


def try_all(history, rng, count):
    """Tries `count` defects, rare ones first. Returns how many there were of each kind, and those that were accepted."""
    tried, accepted = collections.Counter(), []
    def may_show(name, reader):
        if "full disk" in name:
            return is_full(reader) and not reader.get("torchrun")
        # Streams of one rank, and those behind a slow connection, may be mixed so (docs/src/output.md).
        may_mix = len(reader["ranks"]) == 1 or history["job"].get("silent_hosts")
        if name == "mixed line" and may_mix and reader["format"] in ("plain", "tag"):
            return False
        if "lost node" in name:
            return reader["launcher"] and history["job"]["code"] > 0 and b" is lost " in b"".join(reader["outputs"].values())
        return must_show(history, reader)

    cases = [(number, name) for number, reader in enumerate(history["readers"]) for name in CORRUPTIONS if may_show(name, reader)]
    cases = [case for case in cases if not (may_end(history) and case[1] in ("missing line", "missing end"))]
    rng.shuffle(cases)
    for number, name in sorted(cases, key=lambda case: not re.search("gap|of an|full|lost|files", case[1])):
        changed = {**history, "job": dict(history["job"]), "ranks": dict(history["ranks"])}
        changed["readers"] = copy.deepcopy(history["readers"])
        if tried.total() < count and CORRUPTIONS[name](rng, changed, changed["readers"][number]):
            tried[f"refused: {name}"] += 1
            if not history_check.check(changed):
                accepted.append(f"history_check.py accepts a {name} of {history['readers'][number]['name']}")
    return tried, accepted
