"""From what a job names to rows that verl reads: fetched, all checked before a model is loaded, in one schema."""
