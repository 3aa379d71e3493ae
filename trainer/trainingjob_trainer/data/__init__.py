"""Input pipeline: sources, tokenization, token cache, sampling and batching."""
