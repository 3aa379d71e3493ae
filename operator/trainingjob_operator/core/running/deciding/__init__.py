"""Deciding: the one next step of a job and its world, and the chores beside it.

`decide` is the ladder; the rules that its rungs ask lie beside it, one concern a file: when a job is given up, paused,
rolled back or held for a repair, which slices form the next world, what a drill strikes. Stands on `judging`.
"""
