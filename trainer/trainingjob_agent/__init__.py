"""The agent: process 1 of every pod. It reports to the operator, and starts and stops trainer processes.

Messages arrive in one queue. Pure rules turn them into actions. The resulting state is what the agent reports:

    answers (rendezvous, reporter)  ┐                                       ┌  actions: spawn, start, leave, kill,
    events and exits (child)        ┼─ supervisor ── host.react(state) ─────┤           finish, stop
    SIGTERM, timers                 ┘                                       └  report.describe(state) → reporter

`state` holds every value and `host` every rule. The other modules do I/O and decide nothing.
"""
