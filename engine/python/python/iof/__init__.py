"""I/O forwarding for launchers and tools: the output of ranks, exactly and in bounded memory.

    import iof

    with iof.attach("demo") as tool:
        for line in tool.lines(ranks=[1, 2], channels=iof.STDOUT):
            print(line.rank, line.text)

    result = iof.run(["./model", "--steps", "100"], ranks=8)
"""

from ._iof import Batch, Error, Line, __version__
from ._launch import Adopted, App, Engine, Job, Result, command, run
from ._tools import (
    OUTPUTS, STDDIAG, STDERR, STDOUT, Batches, Channel, End, Gap, JobEnd, JobInfo, Lines, Missed, PushReport, Tool, attach,
    jobs,
)  # fmt: skip

__all__ = [
    "OUTPUTS", "STDDIAG", "STDERR", "STDOUT", "Adopted", "App", "Batch", "Batches", "Channel", "End", "Engine", "Error",
    "Gap", "Job", "JobEnd", "JobInfo", "Line", "Lines", "Missed", "PushReport", "Result", "Tool", "__version__", "attach",
    "command", "jobs", "run",
]  # fmt: skip
