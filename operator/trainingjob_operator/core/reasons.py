"""Reasons of conditions, causes and events, as CamelCase strings.

A cause may also carry a reason of Kubernetes (`Evicted`, `ImagePullBackOff`) or of a host's failure (`Crash`).
"""

from enum import StrEnum


class Reason(StrEnum):
    """Reason of a condition, a cause or an event."""

    # The spec and the cluster
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    JOBSET_MISSING = "JobSetMissing"
    REFUSED = "Refused"
    NAME_TAKEN = "NameTaken"
    # Waiting for pods
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_PODS = "WaitingForPods"
    WAITING_FOR_NODES = "WaitingForNodes"
    PLACED = "Placed"
    # Forming a world
    STARTING = "Starting"
    SETTLING = "Settling"
    WAITING_FOR_SLICES = "WaitingForSlices"
    WAITING_FOR_REPAIR = "WaitingForRepair"
    BACKING_OFF = "BackingOff"
    FORMED = "Formed"
    INITIALIZED = "Initialized"
    # A world
    LISTENING = "Listening"
    JOINING = "Joining"
    TRAINING = "Training"
    ALL_SLICES = "AllSlices"
    FEWER_SLICES = "FewerSlices"
    HOST_UNCERTAIN = "HostUncertain"
    EXAMINING = "Examining"
    SLOW_HOST = "SlowHost"
    UPDATES_SKIPPED = "UpdatesSkipped"
    UNUSUAL_DATA = "UnusualData"
    GROWING = "Growing"
    EDITED = "Edited"
    LEAVING = "Leaving"
    FINISHING = "Finishing"
    DRAINING = "Draining"
    # The end of a world
    NODE_GOING = "NodeGoing"
    NODE_LOST = "NodeLost"
    POD_DELETED = "PodDeleted"
    POD_FAILED = "PodFailed"
    CONTAINER_EXITED = "ContainerExited"
    AGENT_RESTARTED = "AgentRestarted"
    HOST_SILENT = "HostSilent"
    HUNG_HOST = "HungHost"
    TRAINER_STUCK = "TrainerStuck"
    SLICE_REMADE = "SliceRemade"
    BAD_NODE = "BadNode"
    ROLLED_BACK = "RolledBack"
    MEMBERS_CHANGED = "MembersChanged"
    RESIZED = "Resized"
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    CHECKPOINT_FAILING = "CheckpointFailing"
    BACKUP_FAILING = "BackupFailing"
    RESTORED_FROM_BACKUP = "RestoredFromBackup"
    DRILL = "Drill"
    # Suspension and completion of a job
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    COMPLETED = "Completed"
    OVER = "Over"
    NOT_OVER = "NotOver"
    SAME_FAILURE_TWICE = "SameFailureTwice"
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
    NO_STEP_SAVED = "NoStepSaved"
    MAX_ROLLBACKS_EXCEEDED = "MaxRollbacksExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    STANDBY_FAILED = "StandbyFailed"
