"""The shell: the only I/O of the operator. It reads, calls the core, and does what the core decided."""
