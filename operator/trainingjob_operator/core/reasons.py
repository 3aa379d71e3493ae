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
    CREATION_REJECTED = "CreationRejected"
    NAME_CONFLICT = "NameConflict"
    # Waiting for pods
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_PODS = "WaitingForPods"
    WAITING_FOR_NODES = "WaitingForNodes"
    PODS_SCHEDULED = "PodsScheduled"
    # Forming a world
    STARTING = "Starting"
    WAITING_FOR_MORE_SLICES = "WaitingForMoreSlices"
    WAITING_FOR_SLICES = "WaitingForSlices"
    WAITING_FOR_REPAIR = "WaitingForRepair"
    BACKING_OFF = "BackingOff"
    FORMED = "Formed"
    INITIALIZED = "Initialized"
    # A world
    WAITING_FOR_HEARTBEATS = "WaitingForHeartbeats"
    JOINING = "Joining"
    TRAINING = "Training"
    ALL_SLICES = "AllSlices"
    FEWER_SLICES = "FewerSlices"
    HOST_UNCERTAIN = "HostUncertain"
    COLLECTING_DIAGNOSTICS = "CollectingDiagnostics"
    SLOW_HOST = "SlowHost"
    UPDATES_SKIPPED = "UpdatesSkipped"
    UNUSUAL_DATA = "UnusualData"
    GROWING = "Growing"
    EDITED = "Edited"
    DRAINING_LAST_HOSTS = "DrainingLastHosts"
    FINISHING = "Finishing"
    DRAINING = "Draining"
    # The end of a world
    NODE_TERMINATING = "NodeTerminating"
    NODE_LOST = "NodeLost"
    POD_DELETED = "PodDeleted"
    POD_FAILED = "PodFailed"
    CONTAINER_EXITED = "ContainerExited"
    AGENT_RESTARTED = "AgentRestarted"
    HEARTBEAT_LOST = "HeartbeatLost"
    HUNG_HOST = "HungHost"
    TRAINER_STUCK = "TrainerStuck"
    SLICE_RECREATED = "SliceRecreated"
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
    FINISHED = "Finished"
    NOT_FINISHED = "NotFinished"
    REPEATED_FAILURE = "RepeatedFailure"
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
    NO_STEP_SAVED = "NoStepSaved"
    MAX_ROLLBACKS_EXCEEDED = "MaxRollbacksExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    STANDBY_FAILED = "StandbyFailed"
