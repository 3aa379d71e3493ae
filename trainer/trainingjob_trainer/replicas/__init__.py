"""Replicas that train alone and synchronize rarely: the outer update, and the rounds in which they exchange deltas."""
