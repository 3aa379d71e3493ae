"""The control loop of a job: observe it, diagnose it, decide the next step, report it.

Four packages in this order: `observing`, `judging`, `deciding`, `telling`. Each imports only the packages before it.
The modules beside them are shared by all: `reasons` of conditions and events, and `goodput`.
"""
