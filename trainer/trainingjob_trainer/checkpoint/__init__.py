"""Checkpoints on storage: write, verify, fence, restore, back up and delete."""
