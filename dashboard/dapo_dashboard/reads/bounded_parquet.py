"""The program that unpacks Parquet files that anybody may have written, with little memory and time.

A kilobyte of such a file may be gigabytes in memory, and neither its size nor its metadata, which may be wrong, shows
it before that. Here the kernel refuses the memory or ends the process, and whoever started it goes on
(`parquet_rows`)."""

import pickle
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final

# Of a file, and of its rows in memory: more than what a trainer writes of a step.
MAX_BYTES: Final = 64 * 2**20
# In all columns and lists of the rows together: as Python's objects they take about 60 bytes each.
MAX_VALUES: Final = 4_000_000
# So many of such values a mapping takes.
_MAPPING: Final = 6
# Of the process, besides what it has before its first file.
_MEMORY: Final = 320 * 2**20
# For a file: of a processor, and of the clock.
CPU_SECONDS: Final = 10
SECONDS: Final = 120
_HEAD: Final = struct.Struct(">?Q")


@dataclass(frozen=True)
class Wanted:
    """Which rows of a file: at most `most`, of some columns and of one row group, or of all."""

    most: int
    columns: Sequence[str] | None = None
    row_group: int | None = None


def unpacked(data: bytes, wanted: Wanted) -> Any:
    """The rows as a buffer with a stream of Arrow's batches. Raises ValueError, and whatever a file makes of the
    reader."""
    import pyarrow
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(pyarrow.BufferReader(data))
    schema = file.schema_arrow
    schema = pyarrow.schema([each for each in schema if wanted.columns is None or each.name in wanted.columns])
    for kind in _types(schema):
        if not _is_plain(kind):
            raise ValueError(f"it has values of the type {str(kind)[:100]}")
    groups = list(range(file.num_row_groups)) if wanted.row_group is None else [wanted.row_group]
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, schema) as stream:
        # A few rows at a time, for the limits. Threads would cost more than such batches.
        for batch in _bounded(
            file.iter_batches(16, row_groups=groups, columns=wanted.columns, use_threads=False), wanted
        ):
            stream.write_batch(batch)
    return sink.getvalue()


def _is_plain(kind: Any) -> bool:
    """Whether `_values` counts all of it: an extension's storage or a dictionary's texts may be many more."""
    from pyarrow import types

    checks = (
        types.is_null, types.is_primitive, types.is_string, types.is_large_string, types.is_binary,
        types.is_large_binary, types.is_list, types.is_large_list, types.is_struct,
    )  # fmt: skip
    return any(check(kind) for check in checks)


def _types(fields: Iterable[Any]) -> Iterator[Any]:
    for each in fields:
        yield each.type
        yield from _types(each.type.field(place) for place in range(each.type.num_fields))


def _bounded(batches: Iterable[Any], wanted: Wanted) -> Iterator[Any]:
    rows = size = values = 0
    for batch in batches:
        rows, size = rows + len(batch), size + batch.nbytes
        values += _MAPPING * len(batch) + sum(map(_values, batch.columns))
        if size > MAX_BYTES or values > MAX_VALUES or rows > wanted.most:
            raise ValueError(f"it has more than {wanted.most:,} rows, {MAX_VALUES:,} values or {MAX_BYTES:,} bytes")
        yield batch


def _values(array: Any) -> int:
    """How many values an array has, with those of its lists: what takes no bytes in a file takes some as an object."""
    import pyarrow

    if isinstance(array, pyarrow.StructArray):
        return _MAPPING * len(array) + sum(map(_values, array.flatten()))
    if isinstance(array, pyarrow.ListArray | pyarrow.LargeListArray):
        return len(array) + _values(array.flatten())
    count: int = len(array)
    return count


def send(stream: IO[bytes], content: Any, refused: bool = False) -> None:
    """Write a message; `content` is bytes or a buffer."""
    view = memoryview(content)
    stream.write(_HEAD.pack(refused, view.nbytes))
    stream.write(view)
    stream.flush()


def received(stream: IO[bytes]) -> tuple[bool, bytes]:
    """The next message: whether it is a refusal, and its content. Raises EOFError."""
    refused, length = _HEAD.unpack(_exactly(stream, _HEAD.size))
    return refused, _exactly(stream, length)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def limit_memory() -> None:
    """Let the process have little more data than it has now, where the kernel says how much that is."""
    with suppress(OSError, StopIteration), open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:")) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (used + _MEMORY, used + _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time(cpu_seconds: int, seconds: int) -> None:
    """Let the kernel end the process that takes longer from now on; `seconds` of the clock, of which 0 is no limit."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    end = int(spent.ru_utime + spent.ru_stime) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
    signal.alarm(seconds)


def _answer(sink: IO[bytes], wanted: Wanted, data: bytes) -> None:
    try:
        content = unpacked(data, wanted)
    except MemoryError:
        send(sink, b"it takes too much memory", refused=True)
    except Exception as error:  # anything may be in a file
        said = str(error)[:300].rstrip(".") or type(error).__name__
        send(sink, said.encode(errors="replace"), refused=True)
    else:
        send(sink, content)


def main() -> None:
    """Answer each request on standard input until it ends: what is wanted, and the file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's; this process ends with its input
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet  # before the limit

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    limit_memory()
    with suppress(EOFError, BrokenPipeError):
        while True:
            wanted, data = pickle.loads(received(source)[1]), received(source)[1]
            limit_time(CPU_SECONDS, SECONDS)
            _answer(sink, Wanted(*wanted), data)
            signal.alarm(0)
            del data


if __name__ == "__main__":
    main()
