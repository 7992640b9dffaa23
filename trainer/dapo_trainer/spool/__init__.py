"""The spool: a durable local queue of a trainer's records, and its delivery to the metadata store.

| module | holds |
| --- | --- |
| `records` | one record as a line with a checksum, and as rows of the metadata store |
| `segments` | the files of a spool folder, and reading them |
| `segment_writer` | appending to them, within a bound of the disk |
| `background_writer` | `Spool`: takes records from training at once, and writes them in a thread |
| `sender` | `Sender`: delivers what was written to the metadata store, in a thread |
| `stored_tail` | what is not delivered yet, in the object store: it outlives the pod's disk |
"""

from dapo_trainer.spool.background_writer import Spool, SpoolStats
from dapo_trainer.spool.records import Record
from dapo_trainer.spool.segments import SpoolReader, read_cursor, read_records
from dapo_trainer.spool.sender import Delivery, Lag, Sender, drain
from dapo_trainer.spool.stored_tail import StoredTail

__all__ = [
    "Delivery",
    "Lag",
    "Record",
    "Sender",
    "Spool",
    "SpoolReader",
    "SpoolStats",
    "StoredTail",
    "drain",
    "read_cursor",
    "read_records",
]
