"""The command `turnstore` against a real service."""

import json
import os
import pty
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from tests.client.scripted_service import Refusal, ScriptedService
from tests.service_process import ServiceProcess
from turnstore import HistoryClient, Response, ResponseNotFoundError
from turnstore.cli.commands import app
from turnstore.cli.exit_codes import ExitCode
from turnstore.cli.views import REASONS, STATUS_COLOURS
from turnstore.replay import ExclusionReason
from turnstore.response import ResponseStatus

Run = Callable[..., Result]

NOT_BUILT = Refusal(grpc.StatusCode.UNIMPLEMENTED)


def message(item_id: str, text: str = "hello") -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }


@pytest.fixture
def history(service: ServiceProcess, namespace: str) -> Iterator[HistoryClient]:
    """A client in the namespace that the command is told."""
    with HistoryClient(service.target, namespace=namespace) as client:
        yield client


@pytest.fixture
def run(service: ServiceProcess, namespace: str) -> Run:
    """Runs the command in a namespace of the test's own."""
    settings = {"TURNSTORE_TARGET": service.target, "TURNSTORE_NAMESPACE": namespace}

    def run(*arguments: str, stdin: str = "", **more: str | None) -> Result:
        return CliRunner().invoke(app, arguments, input=stdin, env={**settings, **more})

    return run


@pytest.fixture
def poisoned(history: HistoryClient) -> HistoryClient:
    """A conversation in which the second turn failed, over an output that answers no call."""
    orphan = {"id": "fco_1", "type": "function_call_output", "call_id": "c", "output": "42"}
    history.store_response(Response("resp_1", conversation_id="conv_1", input_items=[message("in_1")]))
    history.store_response(Response("resp_2", "failed", conversation_id="conv_1", input_items=[orphan]))
    history.store_response(
        Response("resp_3", conversation_id="conv_1", input_items=[message("in_3", "again")])
    )
    return history


def words(result: Result) -> str:
    """The output with any run of spaces as one."""
    return " ".join(result.stdout.split())


def test_resolve_shows_items_as_a_table(run: Run, poisoned: HistoryClient) -> None:
    result = run("resolve", "--conversation", "conv_1")
    assert result.exit_code == 0, result.stderr
    assert "1 in_1 message user: hello 2 in_3 message user: again" in words(result)
    assert "The next turn is given 2 items." in result.stdout
    assert "fco_1" not in result.stdout


def test_resolve_writes_ids_one_on_a_line(run: Run, poisoned: HistoryClient) -> None:
    assert run("resolve", "-c", "conv_1", "--ids").stdout == "in_1\nin_3\n"


def test_resolve_writes_json(run: Run, poisoned: HistoryClient) -> None:
    assert json.loads(run("resolve", "--previous", "resp_3", "--limit", "1", "--json").stdout) == {
        "item_ids": ["in_3"],
        "items": [message("in_3", "again")],
        "ancestor_deleted": False,
        "truncated": True,
    }


def test_resolve_before_a_response(run: Run, poisoned: HistoryClient) -> None:
    assert run("resolve", "--before", "resp_3", "--ids").stdout == "in_1\n"


def test_resolve_limits_by_turns(run: Run, poisoned: HistoryClient) -> None:
    result = run("resolve", "-c", "conv_1", "-n", "1", "--turns")
    assert "The limit left older items out." in result.stdout
    assert "The next turn is given 1 item." in result.stdout


def test_resolve_by_a_policy(run: Run, history: HistoryClient) -> None:
    call = {"id": "call_item", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    history.store_response(Response("resp_1", conversation_id="conv_1", output_items=[call]))
    history.store_response(Response("resp_2", conversation_id="conv_1", input_items=[message("in_2")]))
    line = ("resolve", "-c", "conv_1", "--ids", "--policy")
    assert run(*line, "as-stored").stdout == "call_item\nin_2\n"
    assert run(*line, "model-safe").stdout == "in_2\n"
    assert run(*line, "model-safe", "--answered", "call_1").stdout == "call_item\nin_2\n"


def test_explain_tells_why_an_item_was_left_out(run: Run, poisoned: HistoryClient) -> None:
    result = run("explain", "--conversation", "conv_1")
    assert result.exit_code == 0, result.stderr
    assert "1 resp_1 completed 1 in, 0 out nothing" in words(result)
    assert (
        "2 resp_2 failed 1 in, 0 out fco_1 (function_call_output) FAILED the turn failed "
        "3 resp_3 completed 1 in, 0 out nothing"
    ) in words(result)
    assert "The next turn is given 2 items." in result.stdout


def test_explain_of_a_chain_with_a_deleted_turn(run: Run, history: HistoryClient) -> None:
    history.store_response(Response("resp_1", input_items=[message("in_1")]))
    history.store_response(Response("resp_2", previous_response_id="resp_1", input_items=[message("in_2")]))
    history.delete_response("resp_1")
    result = run("explain", "--previous", "resp_2")
    assert "resp_1 deleted everything DELETED the turn was deleted" in words(result)
    assert "A turn of this line was deleted" in result.stdout


def test_explain_before_a_response_shows_the_turns_before_it(run: Run, poisoned: HistoryClient) -> None:
    result = run("explain", "--before", "resp_3")
    assert "resp_2 failed" in words(result)
    assert "resp_3" not in result.stdout


def test_explain_of_a_conversation_without_turns_says_so(run: Run) -> None:
    assert "has no turns in this namespace and of this user" in words(run("explain", "-c", "none"))


def test_explain_writes_json(run: Run, poisoned: HistoryClient) -> None:
    told = json.loads(run("explain", "-c", "conv_1", "--json").stdout)
    assert [(turn["id"], turn["status"], turn["place"]) for turn in told["turns"]] == [
        ("resp_1", "completed", 1),
        ("resp_2", "failed", 2),
        ("resp_3", "completed", 3),
    ]
    assert told["exclusions"] == [
        {"response_id": "resp_2", "status": "failed", "reason": "FAILED", "item_ids": ["fco_1"]}
    ]
    assert told["item_ids"] == ["in_1", "in_3"]


def test_get_shows_a_failed_response(run: Run, history: HistoryClient) -> None:
    run(
        "store",
        stdin='{"id": "resp_1", "status": "failed", "error": {"code": "server_error", "message": "boom"},'
        ' "output_items": [{"id": "call_item", "type": "function_call", "name": "f", "arguments": "{}"}]}',
    )
    result = run("get", "resp_1")
    assert "Status failed Error server_error: boom Revision 1" in words(result)
    assert "1 call_item function_call f({})" in words(result)


def test_what_get_writes_store_reads(run: Run, history: HistoryClient) -> None:
    text = '{ "id":"i", "n":1e400, "s":"\\ud800" }'
    history.store_response(Response("resp_1", input_items=[text], payload_json='{"a":  1}'))
    document = run("get", "resp_1", "--json").stdout
    history.delete_response("resp_1")
    result = run("store", "--expected-revision", "0", "--json", stdin=document)
    assert json.loads(result.stdout) == {
        "id": "resp_1",
        "status": "completed",
        "revision": 1,
        "input_item_ids": ["i"],
        "output_item_ids": [],
    }
    read = history.get_response("resp_1")
    assert (read.input_items[0].json, read.payload_json) == (text, '{"a":  1}')


def test_list_shows_the_turns(run: Run, poisoned: HistoryClient) -> None:
    poisoned.set_replay_exclusion("resp_3", True)
    result = run("list", "--conversation", "conv_1")
    assert "2 resp_2 failed 1 in, 0 out 1 20" in words(result)
    assert "3 resp_3 completed hidden 1 in, 0 out 2 20" in words(result)
    told = json.loads(run("list", "-p", "resp_3", "--json").stdout)
    assert [turn["id"] for turn in told] == ["resp_1", "resp_2", "resp_3"]


def test_list_of_a_conversation_that_has_not_begun(run: Run) -> None:
    assert run("list", "-c", "nowhere").stdout == "No turns.\n"


def test_store_reads_a_file(run: Run, history: HistoryClient, tmp_path: Path) -> None:
    file = tmp_path / "turn.json"
    file.write_text('{"id": "resp_1", "conversation_id": "conv_1", "input_items": [{"type": "message"}]}')
    assert run("store", str(file)).stdout == "Stored resp_1 (completed) at revision 1.\n"
    assert history.get_response("resp_1").conversation_id == "conv_1"


def test_store_with_its_options(run: Run, poisoned: HistoryClient) -> None:
    document = json.dumps({"id": "resp_4", "conversation_id": "conv_1", "input_items": [message("in_1")]})
    assert run("store", stdin=document).exit_code == ExitCode.CONFLICT
    assert run("store", "--keep-first", stdin=document).exit_code == 0
    repeated = ("store", "--keep-first", "--request-id", str(uuid.uuid4()))
    changed = json.dumps({"id": "resp_5", "status": "in_progress"})
    assert run(*repeated, stdin=changed).stdout == "Stored resp_5 (in_progress) at revision 1.\n"
    assert run(*repeated, stdin=json.dumps({"id": "resp_5"})).stdout.endswith("at revision 1.\n")


def test_store_with_a_snapshot(run: Run, poisoned: HistoryClient) -> None:
    assert run("store", "--inherited", "in_1", "--inherited", "x", stdin='{"id": "resp_4"}').exit_code == 0
    assert run("resolve", "-p", "resp_4", "--ids").stdout == "in_1\nx\n"


def test_exclude_hides_and_shows(run: Run, poisoned: HistoryClient) -> None:
    assert run("exclude", "resp_1").stdout == "resp_1 is hidden from every history (revision 2).\n"
    assert run("resolve", "-c", "conv_1", "--ids").stdout == "in_3\n"
    assert json.loads(run("exclude", "resp_1", "--undo", "--json").stdout) == {
        "id": "resp_1",
        "excluded": False,
        "revision": 3,
    }


def test_delete_tells_what_went(run: Run, poisoned: HistoryClient) -> None:
    assert run("delete", "response", "resp_1", "-y").stdout == "Erased 1 response with 1 item.\n"
    told = run("delete", "conversation", "conv_1", "--yes", "--json").stdout
    assert json.loads(told) == {"responses": 2, "items": 2}


def test_delete_user_data_is_told_whose(run: Run, history: HistoryClient) -> None:
    for user in (None, "anna"):
        history.store_response(Response("resp_1"), scope=history.scope.for_user(user))
    assert run("delete", "user-data", "--yes").exit_code == ExitCode.USAGE
    assert run("delete", "user-data", "--yes", "--user", "anna", "--anonymous").exit_code == ExitCode.USAGE
    assert history.get_response("resp_1").id == "resp_1"
    assert run("delete", "user-data", "--yes", "--user", "anna").exit_code == 0
    assert history.get_response("resp_1").id == "resp_1"
    assert run("delete", "user-data", "--yes", "--anonymous").exit_code == 0
    with pytest.raises(ResponseNotFoundError):
        history.get_response("resp_1")


def test_nothing_is_erased_when_nobody_can_be_asked(run: Run, poisoned: HistoryClient) -> None:
    result = run("delete", "conversation", "conv_1")
    assert result.exit_code == ExitCode.USAGE
    assert "say --yes" in result.stderr
    assert poisoned.get_response("resp_1").id == "resp_1"


def on_terminal(service: ServiceProcess, namespace: str, typed: bytes, *arguments: str) -> tuple[int, str]:
    """Runs the command on a terminal of its own and types; its exit code and what stood there."""
    terminal, its_end = pty.openpty()
    settings = {"TURNSTORE_TARGET": service.target, "TURNSTORE_NAMESPACE": namespace, "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-c", "from turnstore.cli import main; main()", *arguments],
        env={**os.environ, **settings, "COLUMNS": "100"},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
    ) as process:
        os.close(its_end)
        os.write(terminal, typed)
        shown = b""
        while chunk := _read(terminal):
            shown += chunk
    os.close(terminal)
    return process.returncode, shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # that is how a terminal tells that its program has ended
        return b""


@pytest.mark.parametrize(("typed", "exit_code", "left"), [(b"n\n", 1, ["resp_1"]), (b"y\n", 0, [])])
def test_person_is_asked_before_anything_is_erased(
    service: ServiceProcess,
    namespace: str,
    history: HistoryClient,
    typed: bytes,
    exit_code: int,
    left: list[str],
) -> None:
    history.store_response(Response("resp_1", conversation_id="conv_1"))
    code, shown = on_terminal(service, namespace, typed, "delete", "conversation", "conv_1")
    assert "Erase all of conversation conv_1? [y/N]" in shown
    assert code == exit_code
    assert [turn.id for turn in history.list_responses(conversation_id="conv_1")] == left


def test_terminal_shows_colours(service: ServiceProcess, namespace: str, poisoned: HistoryClient) -> None:
    _, shown = on_terminal(service, namespace, b"", "explain", "-c", "conv_1")
    assert "\x1b[31mfailed" in shown
    assert "\x1b[32mcompleted" in shown


def test_content_cannot_steer_the_terminal(run: Run, history: HistoryClient) -> None:
    item = message("in_1", "\x1b[2Jgone \N{RIGHT-TO-LEFT OVERRIDE}[bold]")
    history.store_response(Response("resp_1", conversation_id="conv_1", input_items=[item]))
    result = run("resolve", "-c", "conv_1")
    assert "user: �[2Jgone �[bold]" in result.stdout


def test_ping_tells_that_the_service_serves(run: Run, service: ServiceProcess) -> None:
    result = run("ping")
    assert (result.exit_code, result.stdout.startswith(f"serving at dns:///{service.target}")) == (0, True)
    assert json.loads(run("ping", "--json").stdout)["serving"] is True


def test_ping_of_a_service_that_is_not_ready(run: Run) -> None:
    with ScriptedService(NOT_BUILT) as scripted:
        scripted.set_serving(False)
        result = run("ping", "--target", scripted.target)
        assert result.exit_code == ExitCode.UNAVAILABLE
        assert "not serving" in result.stdout
        waited = run("ping", "--target", scripted.target, "--wait", "--timeout", "1.5", "--json")
        assert json.loads(waited.stdout)["serving"] is False


def test_no_service_is_told_at_once_with_what_to_do(run: Run, unused_target: str) -> None:
    result = run("list", "-c", "conv_1", "--target", unused_target, TURNSTORE_TIMEOUT="60")
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert f"No turnstore service could be reached at dns:///{unused_target}" in result.stderr
    assert "TURNSTORE_TARGET" in result.stderr


FAILURES = [
    (("get", "resp_9"), "", ExitCode.NOT_FOUND, "RESPONSE_NOT_FOUND"),
    (("exclude", "resp_9"), "", ExitCode.NOT_FOUND, "RESPONSE_NOT_FOUND"),
    (("resolve", "-p", "resp_9"), "", ExitCode.NOT_FOUND, "PARENT_NOT_FOUND"),
    (("store", "--expected-revision", "0"), '{"id": "resp_1"}', ExitCode.CONFLICT, "RESPONSE_EXISTS"),
    (
        ("store", "--expected-revision", "9"),
        '{"id": "resp_1", "status": "failed"}',
        ExitCode.CONFLICT,
        "REVISION_MISMATCH",
    ),
    (
        ("store",),
        '{"id": "resp_2", "status": "completed", "conversation_id": "x"}',
        ExitCode.CONFLICT,
        "LINK_CHANGED",
    ),
    (("store",), '{"id": "resp_2", "status": "completed"}', ExitCode.CONFLICT, "RESPONSE_FINISHED"),
    (("store",), '{"id": ""}', ExitCode.INVALID, "INVALID_FIELD"),
]


@pytest.mark.parametrize(
    ("arguments", "stdin", "exit_code", "reason"), FAILURES, ids=[row[3] for row in FAILURES]
)
def test_failure_is_told_to_scripts(
    run: Run, poisoned: HistoryClient, arguments: tuple[str, ...], stdin: str, exit_code: int, reason: str
) -> None:
    for_people = run(*arguments, stdin=stdin)
    for_scripts = run(*arguments, "--json", stdin=stdin)
    error = json.loads(for_scripts.stderr)["error"]
    assert for_people.exit_code == for_scripts.exit_code == exit_code
    assert for_people.stdout == for_scripts.stdout == ""
    assert error["reason"] == reason
    assert error["message"] in for_people.stderr
    assert error["request_id"] not in ("", None)


MISUSES: list[tuple[tuple[str, ...], str]] = [
    (("resolve",), "give a line"),
    (("resolve", "--before", "r", "-c", "c"), "--before stands alone"),
    (("explain",), "give a line"),
    (("list",), "either --conversation or --previous"),
    (("list", "-c", "c", "-p", "r"), "either --conversation or --previous"),
    (("store", "/no/such/file"), "/no/such/file cannot be read: No such file"),
    (("store",), "no document of a response: it is no JSON object"),
    (("resolve", "-c", "c", "--policy", "strict"), "'strict' is not one of"),
    (("resolve", "-c", "c", "-n", "-1"), "greater than or equal to"),
    (("ping", "--timeout", "0"), "greater than or equal to"),
    (("ping", "--target", "example.com:1", "--token", "t"), "in clear text"),
    (("ping", "--token-file", "/no/such/file"), "token file /no/such/file cannot be read"),
    (("ping", "--tls-cert", "c"), "needs both tls_cert and tls_key"),
]


@pytest.mark.parametrize(("arguments", "message"), MISUSES, ids=[" ".join(row[0]) for row in MISUSES])
def test_misuse_is_told(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "command",
    [
        "resolve",
        "explain",
        "get",
        "list",
        "store",
        "exclude",
        "ping",
        "delete response",
        "delete conversation",
        "delete user-data",
    ],
)
def test_help_teaches_by_example(run: Run, command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"turnstore {command}" in result.stdout.partition("Example")[2]
    assert "TURNSTORE_TARGET" in result.stdout


def test_help_names_each_exit_code(run: Run) -> None:
    told = run("--help").stdout.partition("Exit codes:")[2]
    assert [line.split()[0] for line in told.splitlines() if line.strip()[:1].isdigit()] == [
        str(code.value) for code in ExitCode
    ]


def test_token_goes_along(run: Run) -> None:
    with ScriptedService(NOT_BUILT) as scripted:
        result = run("get", "r", "--target", scripted.target, TURNSTORE_TOKEN="t", TURNSTORE_USER="anna")
    assert result.exit_code == ExitCode.FAILED
    assert scripted.received[0].metadata["authorization"] == "Bearer t"
    assert scripted.received[0].request.scope.user == "anna"


def test_each_status_and_each_reason_has_its_look() -> None:
    assert set(STATUS_COLOURS) == set(ResponseStatus)
    assert set(REASONS) == set(ExclusionReason)


def test_installed_command_runs(service: ServiceProcess) -> None:
    command = Path(sys.executable).parent / "turnstore"
    done = subprocess.run(
        [command, "ping", "--target", service.target], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "serving")


def test_extra_that_is_missing_is_named_with_what_to_do() -> None:
    # Hides the packages from the search for modules, as if they were not installed.
    hidden = (
        "import sys, importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name in ('typer', 'rich') else found(name, *more)\n"
        "from turnstore.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", hidden, "ping"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'turnstore[cli]'" in done.stderr
