"""Types of the interface, which .ci/wheel checks by mypy --strict. This is not run."""

from typing import Any, assert_type

import iof
from iof._tools import Event


async def uses(tool: iof.Tool, engine: iof.Engine) -> None:
    for line in tool.lines(ranks=[1, 2], channels=iof.STDOUT | iof.STDERR, tail=3):
        assert_type(line, iof.Line)
        assert_type((line.rank, line.text, line.data), tuple[int | None, str, bytes])
        line.txt  # type: ignore[attr-defined]
    async for item in tool.lines(events=True, follow=False):
        assert_type(item, iof.Line | Event)
    for batch in tool.batches(job="demo"):
        if isinstance(batch, iof.Batch):
            assert_type(memoryview(batch).nbytes, int)
    tool.lines(rank=1)  # type: ignore[call-overload]
    assert_type(tool.query("procs"), dict[str, Any])
    job = await engine.spawn(iof.App(["true"], ranks=2), output="events", timeout=3.5)
    await engine.spawn(iof.App(["true"]), outputs="lines")  # type: ignore[call-arg]
    assert_type((await job.wait()).exits, dict[int, int | None])
    assert_type(iof.run(["true"], on_line=lambda line: print(line.text)), iof.Result)


class OfLine(iof.Line):  # type: ignore[misc]
    """Neither a line nor a batch is a base."""
