"""Ahead-of-time compilation: programs of the neighbouring sizes, compiled while a world trains."""
