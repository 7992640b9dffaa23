"""What every part shares: the job, the stores, the policies and the `dapo` command. Imports no engine."""
