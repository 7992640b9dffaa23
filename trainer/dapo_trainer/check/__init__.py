"""`dapo check`: whether a GPU job fits the installed packages, on a machine that needs no GPU."""
