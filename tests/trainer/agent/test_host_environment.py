"""The environment of an agent, and the message for each mistake in it."""

from pathlib import Path

import pytest

from trainingjob_agent import main as main_module
from trainingjob_agent.host_environment import BrokenEnvironmentError, read_environment
from trainingjob_api.world import ExpectedHardware, RunConfig


def test_a_whole_environment(variables: dict[str, str], run_config) -> None:
    environment = read_environment(variables)

    assert environment.config == run_config
    assert (environment.slice, environment.host, environment.pod_uid) == (3, 0, "uid-0")
    assert (environment.ca, environment.compile_cache, environment.snapshots) == (None, "", "")
    assert (environment.grace_seconds, environment.finish_after_seconds) == (25, 300)


@pytest.mark.parametrize(("grace", "want"), [("10s", 5), ("30s", 25), ("2m", 115)])
def test_a_trainer_has_the_pods_grace_period_less_what_the_agent_needs_itself(
    variables: dict[str, str], run_config: RunConfig, grace: str, want: float
) -> None:
    runtime = run_config.spec.runtime.model_copy(update={"termination_grace_period": grace})
    config = run_config.model_copy(update={"spec": run_config.spec.model_copy(update={"runtime": runtime})})
    Path(variables["TRAININGJOB_CONFIG"]).write_text(config.model_dump_json(by_alias=True))

    assert read_environment(variables).grace_seconds == want


OVERRIDES: dict[str, tuple[dict[str, str], str, object]] = {
    "compile cache": ({"COMPILE_CACHE": "/cache"}, "compile_cache", "/cache"),
    "snapshots": ({"SNAPSHOTS": "/memory"}, "snapshots", "/memory"),
    "grace": ({"GRACE_SECONDS": "5"}, "grace_seconds", 5.0),
    "finish": ({"FINISH_AFTER_SECONDS": "1.5"}, "finish_after_seconds", 1.5),
    "https": ({"RENDEZVOUS": "https://operator.system.svc:8443/", "CA": "/ca.crt"}, "ca", Path("/ca.crt")),
    "no slash twice": ({"RENDEZVOUS": "http://[::1]:80/"}, "rendezvous", "http://[::1]:80"),
    "localhost": ({"RENDEZVOUS": "http://localhost:80"}, "rendezvous", "http://localhost:80"),
    "what devices should do": ({"EXPECTED": '{"flops":1e15,"newer":1}'}, "expected", ExpectedHardware(flops=1e15)),
    "an empty variable is unset": ({"TERMINATION_LOG": ""}, "termination_log", Path("/dev/termination-log")),
}


@pytest.mark.parametrize(("change", "name", "want"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_optional_settings(variables: dict[str, str], change: dict[str, str], name: str, want: object) -> None:
    variables |= {f"TRAININGJOB_{key}": value for key, value in change.items()}

    assert getattr(read_environment(variables), name) == want


BROKEN: dict[str, tuple[dict[str, str], str]] = {
    "no config": ({"CONFIG": ""}, "TRAININGJOB_CONFIG: must be set."),
    "config not there": ({"CONFIG": "/no/file"}, "names /no/file, which cannot be read: No such file or directory."),
    "no pod": ({"POD": ""}, "TRAININGJOB_POD: must be set."),
    "slice is no number": ({"JOB_INDEX": "-1"}, "JOB_INDEX: is '-1' and must be a whole number from zero on."),
    "host missing": ({"HOST": ""}, "TRAININGJOB_HOST: must be set."),
    "grace is no number": ({"GRACE_SECONDS": "25s"}, "is '25s' and must be a number of seconds, zero or more."),
    "grace is endless": ({"GRACE_SECONDS": "inf"}, "must be a number of seconds"),
    "no address": ({"RENDEZVOUS": "operator:8443"}, "must be an address such as https://"),
    "no address at all": ({"RENDEZVOUS": "http://[::1"}, "must be an address such as https://"),
    "another protocol": ({"RENDEZVOUS": "ftp://operator"}, "must be an address such as https://"),
    "no JSON of a device": ({"EXPECTED": "fast"}, "is 'fast' and must be JSON with the expected rates of a device."),
    "plain http in a cluster": (
        {"RENDEZVOUS": "http://operator.system.svc:8443"},
        "without https only this machine's own loopback may be used.",
    ),
    "https without an authority": (
        {"RENDEZVOUS": "https://operator:1"},
        "TRAININGJOB_CA: must name a file with the certificate authority of https://operator:1.",
    ),
}


@pytest.mark.parametrize(("change", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_each_mistake_has_its_message(variables: dict[str, str], change: dict[str, str], words: str) -> None:
    variables |= {f"TRAININGJOB_{key}": value for key, value in change.items()}

    with pytest.raises(BrokenEnvironmentError) as caught:
        read_environment(variables)

    assert words in str(caught.value)


CONFIGS: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "which this image does not understand: the file: Invalid JSON"),
    "a field of a newer operator": ('{"shape": 1}', "which this image does not understand: job: Field required"),
}


@pytest.mark.parametrize(("text", "words"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_config_that_is_not_understood(variables: dict[str, str], text: str, words: str) -> None:
    Path(variables["TRAININGJOB_CONFIG"]).write_text(text)

    with pytest.raises(BrokenEnvironmentError) as caught:
        read_environment(variables)

    assert words in str(caught.value)
    assert "Is the image older or newer than the operator?" in str(caught.value)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(BrokenEnvironmentError) as caught:
        read_environment({})

    assert str(caught.value).count("must be set.") == 9


def test_invalid_environment_ends_the_agent_with_a_termination_message(tmp_path: Path, monkeypatch) -> None:
    last_words = tmp_path / "termination.log"
    monkeypatch.setattr(main_module.os, "environ", {"TRAININGJOB_TERMINATION_LOG": str(last_words)})

    assert main_module.main() == 78
    assert "TRAININGJOB_POD: must be set." in last_words.read_text()
