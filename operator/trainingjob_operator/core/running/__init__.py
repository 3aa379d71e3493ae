"""Running: what is observed of a job, judged and decided about it, and told of it.

Four rooms, each standing only on those before it: `observing`, `judging`, `deciding`, `telling`. What all of them speak
in lies beside them: the reasons of conditions and events, and the places where a job's seconds go.
"""
