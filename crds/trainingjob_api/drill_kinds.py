"""Drill kinds, in a module of their own: the command line shows them before it imports anything heavy."""

from enum import StrEnum

DRILL_SECONDS = 30


class DrillKind(StrEnum):
    """The fault that a drill injects."""

    KILL_SLICE = "kill-slice"  # all pods of a slice are deleted at once
    KILL_HOST = "kill-host"  # one pod is deleted at once
    PREEMPT = "preempt"  # all pods of a slice are evicted, with time to save
    HANG = "hang"  # a trainer is stopped and never resumed
    SLOW = "slow"  # a trainer is stopped most of the time, temporarily
    NAN = "nan"  # the gradients of one step are non-finite
    CORRUPT_CHECKPOINT = "corrupt-checkpoint"  # a bit of the newest checkpoint is flipped, and a trainer killed
    PARTITION = "partition"  # a host does not reach the operator, temporarily
    OPERATOR_DOWN = "operator-down"  # the operator neither answers the job's hosts nor reconciles the job, temporarily
