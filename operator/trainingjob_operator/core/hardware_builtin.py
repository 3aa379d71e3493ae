"""The hardware table that comes with the operator."""

from trainingjob_operator.core.hardware import Hardware
from trainingjob_operator.core.hardware_nvidia import NVIDIA
from trainingjob_operator.core.hardware_tpu import TPUS

BUILTIN = Hardware({}).with_rows((*TPUS, *NVIDIA))
