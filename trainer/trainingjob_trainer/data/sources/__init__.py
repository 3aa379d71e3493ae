"""Data sources: files to documents."""
