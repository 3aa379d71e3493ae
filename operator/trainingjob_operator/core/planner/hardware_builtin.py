"""The operator's built-in hardware table."""

from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.hardware_nvidia import NVIDIA
from trainingjob_operator.core.planner.hardware_tpu import TPUS

BUILTIN = Hardware({}).with_rows((*TPUS, *NVIDIA))
