"""`dapo plan`: what a job would run, without starting anything."""
