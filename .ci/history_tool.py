"""A tool of .ci/history in Python, which writes what history_tool.c writes: `history_tool.py PID DIRECTORY JOB CHANNELS [RANK...]`.

It takes lines or batches, as its pid is odd or even. An end has what the library has counted, too.
"""

import json
import os
import sys

import iof


def main():
    pid, directory, job, channels, *ranks = sys.argv[1:]
    broken, missing, is_over = 0, 0, False
    ranks = [int(rank) for rank in ranks] or None

    def write(kind, item, **fields):
        channel = getattr(item, "channel", None)
        fields = {"type": kind, "nspace": item.nspace, "rank": item.rank, "channel": channel and channel.name.lower()} | fields
        print(json.dumps(fields, separators=(",", ":")))

    def write_bytes(item, data):
        if all(32 <= byte < 127 or byte == 10 for byte in data):
            write("output", item, offset=item.offset, data=data.decode())
        else:
            write("output", item, offset=item.offset, encoding="hex", data=data.hex())

    try:
        with iof.attach(pid=int(pid), directory=directory) as tool:
            part = {"job": job, "ranks": ranks, "channels": iof.Channel(int(channels))}
            for item in tool.batches(**part) if os.getpid() % 2 else tool.lines(events=True, **part):
                if isinstance(item, iof.Gap):
                    write("gap", item, offset=item.offset, lost=item.lost)
                elif isinstance(item, iof.Missed):
                    write("gap", item, rank=None, offset=0, lost=item.bytes)
                elif isinstance(item, iof.End):
                    more = {"missing": item.missing} if item.state == "broken" else {}
                    broken, missing = broken + len(more), missing + item.missing * len(more)
                    if item.state != "gone":
                        write("end", item, offset=item.delivered + item.lost, delivered=item.delivered, produced=item.produced, **more)
                elif isinstance(item, iof.JobEnd):
                    is_over = True
                elif isinstance(item, iof.Batch):
                    write_bytes(item, bytes(item))
                else:
                    write_bytes(item, item.data + b"\n" * item.ends)
    except (iof.Error, ValueError) as error:
        print(f"iof: {error}", file=sys.stderr)
    if not is_over:
        print("iof: no engine, or lost the engine", file=sys.stderr)
    if broken:
        print(f"iof: {broken} streams are broken: at least {missing} bytes are missing", file=sys.stderr)
    sys.stdout.flush()
    return 0 if is_over and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
