"""Conversations: their chat template, and which of their tokens are answers."""
