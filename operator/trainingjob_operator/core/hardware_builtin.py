"""The hardware table that comes with the operator."""

from trainingjob_operator.core.hardware import TPUS, Hardware

BUILTIN = Hardware(tpus=TPUS)
