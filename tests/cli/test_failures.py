"""Errors of commands: each is one line, with exit code 2 if there is no answer."""

import asyncio
import contextlib
import json
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.command_line import CliRunner
from tests.support.patience import ENDLESS_SECONDS
from trainingjob_operator.cli import app as app_module
from trainingjob_operator.cli import remote_job
from trainingjob_operator.cli.entry_point import app
from trainingjob_operator.cli.errors import EXIT_NO_RESULT, EXTRAS, describe_install_hint

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "crds/examples/demo.yaml")
REMOTE = {
    "status": ["status", "demo"],
    "watch": ["status", "demo", "-w"],
    "logs": ["logs", "demo"],
    "follow": ["logs", "demo", "-f"],
    "wait": ["wait", "demo"],
    "scale": ["scale", "demo", "--max", "2"],
    "suspend": ["suspend", "demo"],
    "resume": ["resume", "demo"],
    "drill": ["drill", "demo", "hang"],
    "profile": ["profile", "demo"],
    "stacks": ["stacks", "demo"],
}
LOCAL = {
    "validate": ["validate"],
    "plan": ["plan"],
    "render": ["render"],
    "simulate": ["simulate"],
    "run": ["run"],
    "diff": ["plan", DEMO, "--diff"],
}


def make_config(server: str, **user: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }


def check(result: Any, *words: str, code: int = EXIT_NO_RESULT) -> None:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert "This is a bug in trainingjob" not in result.output
    if code:
        assert result.stderr.startswith("Error: ")
        assert result.stdout == ""
    for word in words:
        assert word in result.stderr


BROKEN = {
    "broken YAML": (b"a: [", "it is not valid YAML"),
    "a tab": (b"a:\n\tb: 1", "it is not valid YAML"),
    "bytes of no text": (bytes(range(256)), "it is not UTF-8 text"),
    "text": (b"hello", "it is not a valid kubeconfig"),
    "a list": (b"- 1", "it is not a valid kubeconfig"),
    "a number": (b"1", "it is not a valid kubeconfig"),
    "nothing": (b"", "no usable kubeconfig"),
    "no contexts": (b"{}", "no usable kubeconfig"),
    "contexts of another form": (b"{contexts: 1, current-context: a}", "no usable kubeconfig"),
    "a context that is text": (b"{contexts: [a], current-context: a, clusters: [], users: []}", "no usable kubeconfig"),
    "a context that is not there": (
        json.dumps({**make_config("http://127.0.0.1:1"), "current-context": "mars"}).encode(),
        "no usable kubeconfig",
    ),
    "no server": (json.dumps({**make_config(""), "clusters": [{"name": "c", "cluster": None}]}).encode(), "no usable"),
    "a server that is a number": (json.dumps(make_config(1)).encode(), "no usable kubeconfig"),  # type: ignore[arg-type]
    "deep nesting": (b"[" * 1200, "no usable kubeconfig: it is"),
    "a mark at its beginning": ("\ufeff" + json.dumps(make_config("http://127.0.0.1:1")), "Connection refused"),
    "an executable entry of another form": (
        json.dumps(make_config("http://127.0.0.1:1", exec=[1])).encode(),
        "cannot be reached",
    ),
    "no certificate file": (
        json.dumps(make_config("https://127.0.0.1:1", **{"client-certificate": "/nowhere"})).encode(),
        "no usable kubeconfig",
    ),
}


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("args", [REMOTE["status"], REMOTE["wait"]], ids=["status", "wait"])
def test_a_kubeconfig_that_cannot_be_used(args: list[str], content: bytes | str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    result = CliRunner().invoke(app, [*args, "--kubeconfig", str(path)])

    check(result, words)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("args", REMOTE.values(), ids=REMOTE.keys())
def test_no_verb_takes_a_broken_kubeconfig_for_an_answer(args: list[str], tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("a: [")

    check(CliRunner().invoke(app, [*args, "--kubeconfig", str(path)]), "it is not valid YAML")


@pytest.mark.parametrize("path", ["/nowhere", "/", "a:b:c"], ids=["no file", "a folder", "several"])
@pytest.mark.parametrize("args", REMOTE.values(), ids=REMOTE.keys())
def test_no_verb_takes_a_missing_kubeconfig_for_an_answer(args: list[str], path: str) -> None:
    check(CliRunner().invoke(app, [*args, "--kubeconfig", path]), "there is no kubeconfig at ")


def job_not_found(request: web.Request) -> web.Response:
    details = {"name": request.match_info["name"]}
    return web.json_response({"kind": "Status", "message": "not found", "details": details}, status=404)


def answer(status: int, message: str) -> Any:
    return lambda _: web.json_response({"kind": "Status", "message": message}, status=status)


ANSWERS = {
    "no CRD": (answer(404, "the server could not find the requested resource"), "install the operator first"),
    "no such job": (job_not_found, 'there is no TrainingJob "demo" in namespace default'),
    "401": (answer(401, "Unauthorized"), "the credentials may have expired"),
    "403": (answer(403, "trainingjobs is forbidden: User x cannot get"), "trainingjobs is forbidden"),
    "500": (answer(500, "etcd is down"), "etcd is down"),
    "no JSON": (lambda _: web.Response(text="<html>"), "the response is not JSON"),
    "a list": (lambda _: web.json_response([1]), ""),
    "text": (lambda _: web.json_response("hello"), ""),
    "null": (lambda _: web.json_response(None), ""),
    "a status of another form": (lambda _: web.json_response({"metadata": {}, "spec": 1, "status": "x"}), ""),
    "bytes of no text": (lambda _: web.Response(body=b"\xff\xfe"), "the response is not JSON"),
    "a redirect to nowhere": (lambda _: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), ""),
}


@contextlib.asynccontextmanager
async def serve(handler: Any) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse = handler(request)
        return response

    application = web.Application()
    application.router.add_route("*", "/apis/trainingjob.dev/v1alpha1/namespaces/default/trainingjobs/{name}", handle)
    async with TestServer(application) as server:
        yield str(server.make_url("/")).rstrip("/")


ANSWERED = [(verb, what) for verb in REMOTE for what in ANSWERS]


@pytest.mark.parametrize(("verb", "what"), ANSWERED, ids=[f"{verb}, {what}" for verb, what in ANSWERED])
async def test_no_verb_takes_a_failure_of_the_cluster_for_an_answer(verb: str, what: str, tmp_path: Path) -> None:
    handler, words = ANSWERS[what]
    path = tmp_path / "config"
    args = [*REMOTE[verb], "--kubeconfig", str(path)]
    if not words and verb in ("watch", "wait", "follow"):
        args = ["status", "demo", "--kubeconfig", str(path)]  # an object without a status is a job that is new
    async with serve(handler) as url:
        path.write_text(yaml.safe_dump(make_config(url, token="t")))
        result = await asyncio.to_thread(CliRunner().invoke, app, args)

    assert "Traceback" not in result.output
    assert "bug in trainingjob" not in result.output
    if words:
        check(result, words)


@pytest.mark.parametrize("args", REMOTE.values(), ids=REMOTE.keys())
def test_a_server_that_is_dead(args: list[str], tmp_path: Path, unused_tcp_port: int) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(make_config(f"https://127.0.0.1:{unused_tcp_port}", token="t")))

    result = CliRunner().invoke(app, [*args, "--kubeconfig", str(path)])

    check(result, f"cannot connect to 127.0.0.1:{unused_tcp_port}: Connection refused")


HINT = "Install gke-gcloud-auth-plugin for use with kubectl"
PLUGINS = {
    "not installed": (None, ("`PLUGIN`, which is not installed, or not on PATH.", HINT)),
    "it fails": ("echo no account >&2; exit 3", ("`PLUGIN`, which returned none", "no account", HINT)),
    "it says nothing": ("true", ("`PLUGIN`, which returned none", HINT)),
    "no JSON": ("echo hello", ("`PLUGIN`, which returned none", HINT)),
    "no token": (
        """echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {}}'""",
        ("`PLUGIN`, which returned none", "missing token", HINT),
    ),
}


@pytest.mark.parametrize(("script", "words"), PLUGINS.values(), ids=PLUGINS.keys())
@pytest.mark.parametrize("args", REMOTE.values(), ids=REMOTE.keys())
def test_a_program_that_gives_no_credentials_is_named(
    args: list[str], script: str | None, words: tuple[str, ...], tmp_path: Path
) -> None:
    plugin, path = tmp_path / "plugin", tmp_path / "config"
    if script is not None:
        plugin.write_text(f"#!/bin/sh\n{script}\n")
        plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    entry = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "installHint": f"{HINT}\n",
        "provideClusterInfo": True,
    }
    path.write_text(yaml.safe_dump(make_config("http://127.0.0.1:1", exec=entry)))

    result = CliRunner().invoke(app, [*args, "--kubeconfig", str(path)])

    check(result, *(word.replace("PLUGIN", str(plugin)) for word in words))


FILES: dict[str, bytes | None] = {
    "no such file": None,
    "bytes of no text": bytes(range(256)),
    "UTF-16": "kind: TrainingJob".encode("utf-16"),
    "broken YAML": b"a: [",
    "aliases without end": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 9)) for n in range(ord("a"), ord("j"))),
    "deep nesting": b"[" * 1200 + b"]" * 1200,
    "nothing": b"",
    "another kind": b"{apiVersion: v1, kind: Pod}",
    "a tag of another form": b"a: !!bool maybe",
    "an empty number": b'a: !!int ""',
    "a number of 5,000 digits": b"a: " + b"9" * 5000,
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("args", LOCAL.values(), ids=LOCAL.keys())
def test_a_file_that_cannot_be_read(args: list[str], content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_bytes(content)

    check(CliRunner().invoke(app, [*args, str(path)]), "job.yaml")


@pytest.mark.parametrize("path", [str(ROOT), "/dev/zero", "\x00"], ids=["a folder", "no end", "no path"])
@pytest.mark.parametrize("args", LOCAL.values(), ids=LOCAL.keys())
def test_a_path_that_is_no_file(args: list[str], path: str) -> None:
    check(CliRunner().invoke(app, [*args, path]))


@pytest.mark.parametrize("content", [b"a: [", b"[" * 1200, bytes(range(256)), b"- 1", b"1"], ids=range(5))
@pytest.mark.parametrize("args", [["validate"], ["plan"], ["render"], ["simulate"]], ids=" ".join)
def test_rows_that_cannot_be_read(args: list[str], content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_bytes(content)

    check(CliRunner().invoke(app, [*args, DEMO, "--accelerators", str(path)]), "accelerators")


def list_arguments() -> list[tuple[str, list[str]]]:
    """Return a call with a wrong value for each option of each verb that is a number."""
    calls = []
    for command in app.registered_commands:
        assert command.callback is not None
        verb = command.callback.__name__
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            if isinstance(hint, type) or not {int, float} & {hint.__origin__, *get_args(hint.__origin__)}:
                continue
            option = next((one for one in hint.__metadata__[0].param_decls or () if one.startswith("--")), None)
            calls.append((f"{verb} {name}", [verb, f"{option or '--' + name.replace('_', '-')}=blah", "x", "hang"]))
    return [*calls, ("drill kind", ["drill", "demo", "blah"])]


@pytest.mark.parametrize("args", [args for _, args in list_arguments()], ids=[name for name, _ in list_arguments()])
def test_argument_errors_have_no_messages_of_a_library(args: list[str]) -> None:
    result = CliRunner().invoke(app, args)

    assert result.exit_code == 2
    assert "Value error" not in result.stderr
    assert "Input should" not in result.stderr


def test_number_out_of_range_reports_the_range() -> None:
    assert (
        "Invalid value for '--min': it must be greater than or equal to 1"
        in CliRunner().invoke(app, ["scale", "demo", "--min", "0"]).stderr
    )


def test_unexpected_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_job, "_find_kubeconfig", lambda _: 1 / 0)

    result = CliRunner().invoke(app, ["status", "demo"])

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ZeroDivisionError: division by zero\nThis is a bug in trainingjob ")

    monkeypatch.setenv(app_module.TRACEBACK, "1")
    assert isinstance(CliRunner().invoke(app, ["status", "demo"]).exception, ZeroDivisionError)


@pytest.mark.parametrize(("extra", "library"), [(one, library) for one in EXTRAS for library in EXTRAS[one]])
def test_a_library_that_is_missing_is_named_with_its_extra(extra: str, library: str) -> None:
    error = ModuleNotFoundError(f"No module named '{library}'", name=f"{library}.part")

    assert f"needs {library}" in describe_install_hint(error)
    assert f"pip install 'trainingjob[{extra}]'" in describe_install_hint(error)
    assert describe_install_hint(ModuleNotFoundError(name="trainingjob_operator.nowhere")) == ""
    assert describe_install_hint(ValueError()) == ""


def test_an_interrupt_ends_with_its_own_code(tmp_path: Path) -> None:
    async def wait_forever(_: web.Request) -> web.StreamResponse:
        begun.set()
        await asyncio.sleep(ENDLESS_SECONDS)
        return web.Response()

    async def interrupt() -> tuple[int, bytes]:
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", wait_forever)
        async with TestServer(application) as server:
            config = tmp_path / "config"
            config.write_text(yaml.safe_dump(make_config(str(server.make_url("/")).rstrip("/"), token="t")))
            command = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from trainingjob_operator.cli.entry_point import main; main()",
                *("wait", "demo", "--kubeconfig", str(config)),
                stderr=subprocess.PIPE,
            )
            await begun.wait()
            command.send_signal(signal.SIGINT)
            _, errors = await command.communicate()
            return command.returncode or 0, errors

    begun = asyncio.Event()
    code, errors = asyncio.run(interrupt())

    assert (code, errors) == (130, b"")


def test_version_is_printed() -> None:
    runner = CliRunner()
    reported = [runner.invoke(app, args).stdout for args in (["--version"], ["version"])]

    assert reported == [f"trainingjob {app_module.find_version()}\n"] * 2
    assert reported[0].split()[1][0].isdigit()


def test_a_tree_that_was_never_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", refuse)

    assert app_module.find_version() == "unknown"
