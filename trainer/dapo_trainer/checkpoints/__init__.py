"""Checkpoints in the object store: committed while training runs, verified and restored, kept and removed by rule.

| module | holds |
| --- | --- |
| `checkpoint_store` | `CheckpointStore`: all that is done with the checkpoints of one run |
| `stored_checkpoints` | `StoredCheckpoints`: which ones there are, for reading |
| `checkpoint_files` | their files, one by one: stored, fetched, verified |
| `uploader` | `CheckpointUploader`: commits checkpoints in a thread, with retries and retention |
| `restore` | what an attempt starts from |
| `fetching` | files on their way to the disk, those first that ranks load first |
| `background_restore` | `BackgroundRestore`: its files arrive while Ray and the engines start |
"""
