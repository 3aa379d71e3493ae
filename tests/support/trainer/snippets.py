"""Programs of a line, to read."""

from trainingjob_trainer.hlo_analysis.parser import HloProgram


def one(line: str) -> HloProgram:
    """Return a program that consists of one line, and arrays for it."""
    arrays = [
        "%x = bf16[4,2048,16,128]{3,1,2,0} parameter(0)",
        "%w = bf16[16,128,1,256]{3,1,0,2} parameter(1)",
        "%q = bf16[4,4,64,512]{3,2,1,0} parameter(2)",
        "%k = bf16[4,4,512,64]{3,2,1,0} parameter(3)",
    ]
    return HloProgram("\n".join(["HloModule m", "ENTRY %main (x: bf16[1]) -> bf16[1] {", *arrays, line, "}"]))
