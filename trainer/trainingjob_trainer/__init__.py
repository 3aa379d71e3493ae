"""The trainer: the agent that is process 1 of every pod, and the JAX program that it runs."""
