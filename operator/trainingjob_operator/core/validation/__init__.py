"""Validation: the one verdict on a spec, and what people read about its fields."""
