"""Judging: what the facts mean. Who is gone, hangs or keeps the others waiting; which nodes and saves fail, and why.

A judgement names a cause and its place, and says nothing of what is done about it: that is for `deciding`. Stands on
`observing`.
"""
