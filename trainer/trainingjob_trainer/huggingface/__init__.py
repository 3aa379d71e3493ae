"""Weights in the format of Hugging Face: read by slice into sharded parameters, and written from them."""
