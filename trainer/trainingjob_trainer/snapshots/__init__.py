"""Snapshots: copies of the state in host memory, and restores from them."""
