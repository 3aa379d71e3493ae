"""Units of the spec's numeric fields, by the path of the field or of an enclosing object."""

UNITS: dict[str, str] = {
    "slices": "slices",
    "parallelism": "ways",
    "parallelism.pipeline.microbatches": "microbatches",
    "model.vocabSize": "token ids",
    "model.embedDim": "features",
    "model.mlpDim": "features",
    "model.numLayers": "layers",
    "model.numHeads": "heads",
    "model.numKvHeads": "heads",
    "model.headDim": "features",
    "model.ropeTheta": "",
    "model.normEpsilon": "",
    "model.initScale": "",
    "model.experts.count": "experts",
    "model.experts.perToken": "experts",
    "model.experts.weightScale": "",
    "model.experts.capacityFactor": "times an even share",
    "model.experts.groupLength": "tokens",
    "model.experts.shared": "experts",
    "model.experts.loadBalanceWeight": "",
    "training.steps": "optimizer steps",
    "training.globalBatchSize": "sequences an optimizer step",
    "training.sequenceLength": "tokens",
    "training.maxPerDeviceBatch": "sequences a device",
    "training.seed": "",
    "optimizer": "",
    "schedule.warmupSteps": "optimizer steps",
    "schedule.finalFraction": "share of the peak learning rate",
    "checkpoint.save.everySteps": "optimizer steps",
    "checkpoint.keep.last": "checkpoints",
    "checkpoint.keep.best.count": "checkpoints",
    "checkpoint.backup.keep": "copies",
    "checkpoint.initializeFrom.step": "optimizer steps",
    "checkpoint.snapshots.everySteps": "optimizer steps",
    "checkpoint.keep.everySteps": "optimizer steps",
    "protection.spikes.sigma": "standard deviations",
    "protection.spikes.window": "optimizer steps",
    "protection.compareReplicas.everySteps": "optimizer steps",
    "protection.maxRollbacks": "rollbacks",
    "elastic.maxRestarts": "failures",
    "elastic.maxRestartsWithoutCommit": "failures",
    "evaluation.everySteps": "optimizer steps",
    "evaluation.numBatches": "global batches",
    "metrics.everySteps": "optimizer steps",
    "runtime.resources.cpu": "cores",
    "runtime.resources.memory": "bytes",
    "scheduling.tolerations.tolerationSeconds": "seconds",
    "ttlSecondsAfterFinished": "seconds",
    "activeDeadlineSeconds": "seconds",
}
"""Empty: a number without unit."""


def find_unit(names: tuple[str, ...]) -> str | None:  # None: not listed
    """Return the unit of the numeric field at a path. The longest listed prefix of the path applies."""
    for length in range(len(names), 0, -1):
        unit = UNITS.get(".".join(names[:length]))
        if unit is not None:
            return unit
    return None
