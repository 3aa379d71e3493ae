"""The secret by which compiled programs are proven: where it goes in a pod, and where it never does."""

import hashlib
import logging
from pathlib import Path

from tests.trainer.agent.conftest import SECRET
from tests.trainer.agent.test_supervisor import has_standby, is_training, read_proc, trainers, world
from trainingjob_api.protocol import Directive


async def test_the_secret_of_programs_reaches_the_trainer_and_nothing_else(
    launch, operator, variables, caplog, capfdbinary
) -> None:
    caplog.set_level(logging.DEBUG)
    launch(g1="secret", g2="chatter")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    failed = await operator.hear(lambda report: report.failure is not None)
    await operator.say(Directive.WAIT)  # without a world no secret comes: the agent keeps the one that it has
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(2))
    await operator.hear(is_training(2))

    assert hashlib.sha256(SECRET.encode()).hexdigest() in failed.failure.log
    printed = [report.model_dump_json() for report in operator.reports]
    written = [path.read_text() for path in Path(variables["TRAININGJOB_CONFIG"]).parent.glob("*") if path.is_file()]
    output = capfdbinary.readouterr()
    assert not any(SECRET in text for text in (*printed, *written, caplog.text, str(output.out + output.err)))
    assert not any(SECRET.encode() in read_proc(pid, "environ") + read_proc(pid, "cmdline") for pid in trainers())
