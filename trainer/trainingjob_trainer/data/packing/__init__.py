"""Packing: which documents, or parts of documents, make a sequence."""
