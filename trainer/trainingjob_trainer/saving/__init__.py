"""What is kept of a state on storage: written, proven, fenced, found again, copied and deleted."""
