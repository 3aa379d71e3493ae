"""Years of a job's life in seconds: the rules that run real jobs, over a cluster that only exists in numbers."""
