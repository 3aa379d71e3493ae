"""The kinds of drills: by themselves, because the command line shows them before anything heavy is imported."""

from enum import StrEnum

DRILL_SECONDS = 30


class DrillKind(StrEnum):
    """What is done to the job."""

    KILL_SLICE = "kill-slice"  # all pods of a slice are deleted at once
    KILL_HOST = "kill-host"  # one pod is deleted at once
    PREEMPT = "preempt"  # all pods of a slice are deleted, with the time to save that an eviction gives
    HANG = "hang"  # a trainer is stopped and never goes on
    SLOW = "slow"  # a trainer is stopped most of the time, for a while
    NAN = "nan"  # the gradients of one step are not finite
    CORRUPT_CHECKPOINT = "corrupt-checkpoint"  # a bit of the newest saved step is flipped, and a trainer killed
    PARTITION = "partition"  # a host does not speak with the operator, for a while
    OPERATOR_DOWN = "operator-down"  # the operator neither answers the job's hosts nor looks at it, for a while
