"""Batches: bytes in the shared memory, which stay while Python uses them."""

import gc
import signal

import iof
import pytest

SIZE = 60000


@pytest.fixture
def batch(job):
    """Returns a job, a tool, its reader and the first batch, of `SIZE` bytes or a part of them."""
    started = job(f"head -c {SIZE} /dev/zero | tr '\\0' x; printf end >&2")
    tool = iof.attach(started.name, wait=30)
    batches = tool.batches(channels=iof.STDOUT)
    yield started, tool, batches, next(batches)
    gc.collect()
    tool.close()


def test_a_batch_is_a_read_only_buffer(batch):
    _started, _tool, _batches, first = batch
    with first, memoryview(first) as view:
        assert view.readonly and view.format == "B" and view.nbytes == len(first)
        assert view[:3] == b"xxx" and bytes(first) == b"x" * len(first)
        with pytest.raises(TypeError):
            view[0] = 1
        assert (first.rank, first.channel, first.offset) == (0, iof.STDOUT, 0)
    with pytest.raises(BufferError, match="released"):
        memoryview(first)


def test_release_with_an_export_or_a_slice_raises_and_the_bytes_stay(batch):
    started, _tool, batches, first = batch
    view = memoryview(first)
    part = view[10:20]
    for call in (first.release, lambda: next(batches)):
        with pytest.raises(BufferError, match="2 exports|1 exports"):
            call()
    view.release()
    with pytest.raises(BufferError):
        first.release()
    started.end()
    assert part == b"x" * 10
    part.release()
    first.release()
    first.release()
    sizes = [len(item) for item in batches if isinstance(item, iof.Batch)]
    assert len(first) + sum(sizes) == SIZE


def test_the_next_batch_gives_the_last_one_back(batch):
    started, _tool, batches, first = batch
    started.end()
    for item in batches:
        with pytest.raises(BufferError, match="released"):
            memoryview(first)
        if isinstance(item, iof.Batch):
            first = item


def test_a_slice_outlives_its_batch_its_reader_and_its_tool(batch):
    _started, tool, batches, first = batch
    part = memoryview(first)[5:15]
    tool.close()
    del first, batches, tool
    gc.collect()
    assert part == b"x" * 10
    part.release()


def test_the_release_of_an_older_batch_leaves_a_closed_readers_newest_one(job):
    started = job("printf one; printf two >&2")
    with iof.attach(started.name, wait=30) as tool:
        batches = iter(tool.batches())
        first, second = next(batches), next(batches)
        view = memoryview(second)
        expected = bytes(view)
        batches.close()
        first.release()
        with pytest.raises(BufferError):
            second.release()
        assert view == expected and bytes(second) == expected
        view.release()
        second.release()


def test_a_slice_outlives_the_engine(batch):
    started, tool, batches, first = batch
    part = memoryview(first)[5:]
    started.process.send_signal(signal.SIGKILL)
    started.process.wait()
    assert part == b"x" * len(part)
    with pytest.raises(iof.Error):
        tool.query("procs")
    assert part == b"x" * len(part)
    part.release()
    first.release()


def test_a_slice_may_live_at_the_exit_of_the_interpreter(job, python):
    started = job("echo one")
    process = python(
        f"""
import iof
tool = iof.attach({started.name!r}, wait=30)
batches = tool.batches()
batch = next(batches)
part = memoryview(batch)[:3]
print(bytes(part))
"""
    )
    assert process.communicate() == ("b'one'\n", None) and process.returncode == 0


def test_the_memory_of_a_closed_reader_is_given_back_with_the_last_export(batch):
    _started, tool, batches, first = batch

    def readers():
        with iof.attach(pid=tool.engine_pid) as other:
            streams = other.query("stats")["stats"]
            return [reader for stream in streams for reader in stream["readers"] if reader["tool"] == "python"]

    view = memoryview(first)
    batches.close()
    assert readers() != []
    view.release()
    first.release()
    from conftest import until

    until(lambda: readers() == [])
