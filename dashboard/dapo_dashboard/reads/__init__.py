"""What pages read: queries of the metadata store and their caches, samples of the object store."""
