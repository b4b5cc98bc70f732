"""The README of the client and its examples do what they say."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import StartService
from tests.service_process import ServiceProcess
from turnstore import errors
from turnstore.cli.commands import app
from turnstore.cli.exit_codes import ExitCode
from turnstore.cli.session import opened
from turnstore.endpoint import DEFAULT_TARGET

CLIENT = Path(__file__).parents[2] / "clients" / "python"
README = CLIENT / "README.md"


@dataclass(frozen=True)
class Block:
    """A block of code in the README."""

    language: str
    text: str
    line: int


def blocks() -> list[Block]:
    text = README.read_text("utf-8")
    return [
        Block(found[1], found[2], text[: found.start(2)].count("\n"))
        for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def in_words(output: str) -> str:
    """An output with what only the width of a table decides taken out."""
    return " ".join(re.sub("─+", "─", output).split())


def shows(expected: str, output: str) -> bool:
    """Whether an output is what the README shows, in which `...` stands for anything."""
    parts = [re.escape(in_words(part)) for part in expected.split("...")]
    return re.fullmatch(".*".join(parts), in_words(output)) is not None


def run_console(block: Block, environment: dict[str, str]) -> None:
    for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert shows(expected, done.stdout), f"$ {command}\n{done.stdout}"


def test_blocks_do_what_they_show(start_service: StartService) -> None:
    target = start_service().wait_ready().target
    environment = {
        **os.environ,
        "TURNSTORE_TARGET": target,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks():
        if block.language == "python":
            # As if each block stood at its line of the README, so that an error names the line.
            source = "\n" * block.line + block.text.replace(DEFAULT_TARGET, target)
            exec(compile(source, README, "exec"), names)
        elif block.language == "console":
            run_console(block, environment)
        else:
            assert block.language == "sh", f"line {block.line}: nothing runs a block of {block.language}"


def test_packages_that_are_installed_are_there() -> None:
    (install,) = [block.text for block in blocks() if block.language == "sh"]
    root = CLIENT.parents[1]
    assert "pip install './clients/python[cli]' '.[embedded]'" in install
    assert "cli = [" in (CLIENT / "pyproject.toml").read_text()
    assert "embedded = [" in (root / "pyproject.toml").read_text()


def table(heading: str) -> list[list[str]]:
    """The cells of the table with this first heading."""
    text = README.read_text("utf-8")
    rows = text.split(f"| {heading} |")[1].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_table_of_exceptions_has_them_all() -> None:
    told = set(re.findall(r"`(\w+Error)`", " ".join(row[0] for row in table("exception"))))
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.TurnstoreError)
    }
    assert told == kinds - {"TurnstoreError"} | {"TimeoutError"}


def test_table_of_exit_codes_has_them_all() -> None:
    assert [row[0] for row in table("exit code")] == [str(code.value) for code in ExitCode]


def test_exit_codes_are_told_as_the_command_tells_them() -> None:
    told = str(app.info.help)
    for number, meaning in table("exit code"):
        assert f"  {number}  {meaning}\n" in told


def test_table_of_options_has_their_variables() -> None:
    told = re.findall(r"`(TURNSTORE_\w+)`", " ".join(row[1] for row in table("option")))
    annotations = opened.__wrapped__.__annotations__  # type: ignore[attr-defined]
    variables = re.findall(r"'(TURNSTORE_\w+)'|\"(TURNSTORE_\w+)\"", " ".join(map(str, annotations.values())))
    assert sorted(told) == sorted(a or b for a, b in variables)


def test_subcommands_are_named() -> None:
    told = README.read_text("utf-8").split("Its subcommands are")[1].partition(";")[0]
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    groups = {group.name for group in app.registered_groups}
    assert set(re.findall(r"`([\w-]+)`", told)) == names | groups


def test_example_program(service: ServiceProcess) -> None:
    done = subprocess.run(
        [sys.executable, CLIENT / "examples" / "failed_turn.py", service.target],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "user: Hello\nassistant: Hello! How can I help?\nleft out, since its turn is failed: 1 item\n"
    )
