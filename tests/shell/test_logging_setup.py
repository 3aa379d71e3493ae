"""A log line has a constant message and variable fields, in JSON or in text."""

import json
import logging

import pytest

from trainingjob_operator.shell import logging_setup
from trainingjob_operator.shell.logging_setup import Log, RateLimitedLog


@pytest.fixture(autouse=True)
def restore_logging():
    root, ours = logging.getLogger(), logging.getLogger(logging_setup.ROOT)
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)
    logging.getLogger(logging_setup.KOPF_SIGNAL_LOGGER).setLevel(logging.NOTSET)
    logging.getLogger(logging_setup.KOPF_REQUEST_LOGGER).removeFilter(logging_setup.downgrade_retried_errors)


def test_json_line_has_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure_logging("info", "json")

    logging_setup.Log("lease").info("lease taken", holder="one\ntwo", generation=3)

    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "trainingjob.lease",
        "message": "lease taken",
        "holder": "one\ntwo",
        "generation": 3,
    }


def test_fields_and_message_do_not_override_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure_logging("info", "json")

    logging_setup.Log("hub").info("heard", message="theirs", level="high")

    line = json.loads(capsys.readouterr().err)
    assert (line["message"], line["message_"]) == ("heard", "theirs")
    assert (line["level"], line["level_"]) == ("info", "high")


def test_text_line_stays_one_line_and_quotes_what_would_confuse(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure_logging("info", "text")

    logging_setup.Log("hub").warning("heard", job="a", why="two words\nand a line", empty="")

    line = capsys.readouterr().err
    assert line.endswith('WARNING hub: heard job=a why="two words\\nand a line" empty=""\n')


@pytest.mark.parametrize("form", logging_setup.FORMATS)
def test_an_unforeseen_error_brings_its_traceback(
    form: logging_setup.Format, capsys: pytest.CaptureFixture[str]
) -> None:
    logging_setup.configure_logging("info", form)

    try:
        raise ValueError("why")
    except ValueError:
        logging_setup.Log("main").exception("reconcile failed", job="a")

    assert "ValueError: why" in capsys.readouterr().err


def test_the_level_is_of_our_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure_logging("debug", "text")

    logging_setup.Log("main").debug("ours")
    logging.getLogger("kopf").info("theirs")

    assert "ours" in (err := capsys.readouterr().err)
    assert "theirs" not in err


@pytest.mark.parametrize(("end", "level"), [("will retry", "warning"), ("escalating", "error")])
def test_a_request_of_kopf_that_is_tried_again_is_no_error(
    end: str, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logging_setup.configure_logging("info", "json")

    logging.getLogger(logging_setup.KOPF_REQUEST_LOGGER).error(
        "Request attempt #1 failed; %s: GET https://api/pods -> refused", end
    )

    line = json.loads(capsys.readouterr().err)
    assert line["level"] == level
    assert line["message"].endswith("refused")


def test_log_lines_that_any_caller_can_cause_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    rare = RateLimitedLog(Log("part"), lambda: now[0], every_seconds=10.0)

    for number in range(2000):
        rare.warning("refused", number=number)
    now[0] = 11.0
    rare.warning("refused", number=2000)
    now[0] = 22.0
    rare.warning("refused", number=2001)

    fields = [record.fields for record in caplog.records]
    assert fields == [{"number": 0}, {"number": 2000, "left_out": 1999}, {"number": 2001}]
