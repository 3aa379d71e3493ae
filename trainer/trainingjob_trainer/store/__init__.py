"""Stores: where checkpoints and their backups are kept. `port.py` says what every store guarantees."""
