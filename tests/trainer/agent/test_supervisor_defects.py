"""A whole agent on a host with a defect: trainers that cannot start, folders that cannot be written."""

from tests.trainer.agent.test_supervisor import exit_code, has_standby, is_broken, world
from trainingjob_agent import host as host_module
from trainingjob_agent.host_environment import read_environment
from trainingjob_agent.state import Terminated
from trainingjob_agent.supervisor import Supervisor
from trainingjob_api.protocol import Directive, Phase


async def test_standby_that_cannot_start_is_reported_with_its_output(launch, operator, monkeypatch) -> None:
    monkeypatch.setattr(host_module, "BACKOFF_SECONDS", (0.01,))
    launch(standby="broken")
    report = await operator.hear(is_broken)

    assert report.broken.log == "cannot import the trainer"
    assert not report.standby


async def test_a_trainer_that_is_not_in_the_image_is_reported(launch, operator, monkeypatch) -> None:
    monkeypatch.setattr(host_module, "BACKOFF_SECONDS", (0.01,))
    launch(command=["/no/such/python"])
    report = await operator.hear(is_broken)

    assert "No such file or directory: '/no/such/python'" in report.broken.message


async def test_agent_ends_well_if_the_pod_is_deleted_while_a_trainer_cannot_start(operator, variables) -> None:
    supervisor = Supervisor(read_environment(variables), ["/no/such/python"])
    supervisor._messages.put_nowait(Terminated())  # before the agent handles that its first trainer did not start

    assert await supervisor.run() == 143
    assert operator.reports[-1].phase is Phase.IDLE


async def test_folders_that_cannot_be_written_stop_nothing(launch, operator, variables, monkeypatch, caplog) -> None:
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    variables["TRAININGJOB_TERMINATION_LOG"] = "/proc/no"
    task = launch(g1="finish")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(lambda report: report.phase is Phase.DONE)
    await operator.say(Directive.FINISH, outcome="Succeeded")

    assert await exit_code(task) == 0
    assert "a restart of this container will not know its world" in caplog.text
    assert "the termination message cannot be written" in caplog.text
