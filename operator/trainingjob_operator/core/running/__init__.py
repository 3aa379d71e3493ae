"""Running: what is observed of a job, what is decided about it, and the status that tells."""
