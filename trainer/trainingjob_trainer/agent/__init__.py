"""The agent: process 1 of every pod. It keeps the pod, hears of worlds, and starts and ends trainer processes.

News comes in one queue, pure rules turn it into actions, and the state that remains is what is reported:

    answers (rendezvous, reporter)  ┐                                       ┌  actions: spawn, start, leave, kill,
    events and ends (child)         ┼─ supervisor ── host.react(state) ─────┤           finish, stop
    SIGTERM, the time               ┘                                       └  report.describe(state) → reporter

`state` holds every value, `host` every rule; the rest does I/O and decides nothing.
"""
