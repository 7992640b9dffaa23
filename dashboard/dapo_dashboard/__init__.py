"""The dashboard over the metadata store. It reads through `dapo_core.db.reader`."""
