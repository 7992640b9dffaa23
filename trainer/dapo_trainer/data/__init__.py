"""From what a job names to rows that verl reads: fetched, checked whole before a model is loaded, in one schema."""
