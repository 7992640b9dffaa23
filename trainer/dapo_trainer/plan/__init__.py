"""What a job would run and what memory it would need, computed without starting anything: `dapo plan`."""
