"""Compiles the train step of a plan without devices, to report memory, FLOPs and traffic before scheduling."""
