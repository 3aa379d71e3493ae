"""Operator core: pure functions over values. All rules about jobs live here and can be tested without a cluster."""
