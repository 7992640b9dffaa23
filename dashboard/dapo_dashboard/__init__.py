"""The dashboard over the metadata store. Not built yet; its reads are in `dapo_core.db.queries`."""
