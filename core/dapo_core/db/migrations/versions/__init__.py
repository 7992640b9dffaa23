"""One revision a file, `rNNNN_what.py`, in the order of their `down_revision`."""
