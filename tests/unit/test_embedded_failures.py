"""What is told when mongod cannot run, with programs in its place that fail as it would."""

from pathlib import Path

import pytest

from turnstore_service.embedded.errors import EmbeddedMongodError
from turnstore_service.embedded.mongod import EmbeddedMongod


def _failure_of(directory: Path, script: str) -> str:
    program = directory / "mongod"
    program.write_text(script)
    program.chmod(0o755)
    mongod = EmbeddedMongod(directory / "data", program)
    with pytest.raises(EmbeddedMongodError) as failure:
        mongod.start()
    return str(failure.value)


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("libcrypto.so.3", "apt-get install libssl3"),
        ("libssl.so.3", "apt-get install libssl3"),
        ("libcurl.so.4", "apt-get install libcurl4"),
        ("libother.so.1", "Install the package that holds it."),
    ],
)
def test_missing_library_is_named_with_what_to_do(tmp_path: Path, library: str, advice: str) -> None:
    told = _failure_of(
        tmp_path,
        f"#!/bin/sh\necho '{tmp_path}/mongod: error while loading shared libraries: {library}: cannot open "
        "shared object file: No such file or directory' >&2\nexit 127\n",
    )
    assert f"needs the library {library}" in told
    assert advice in told
    assert "TURNSTORE_MONGODB_URI=mongodb://" in told


def test_processor_without_avx_is_named(tmp_path: Path) -> None:
    assert "need AVX" in _failure_of(tmp_path, "#!/bin/sh\nkill -ILL $$\n")


def test_program_of_another_machine_is_told(tmp_path: Path) -> None:
    told = _failure_of(tmp_path, "no program")
    assert "cannot be executed" in told
    assert "Exec format error" in told


def test_words_of_a_failing_mongod_are_passed_on(tmp_path: Path) -> None:
    told = _failure_of(tmp_path, "#!/bin/sh\necho 'unrecognised option --what'\nexit 2\n")
    assert "ended with status 2" in told
    assert "unrecognised option --what" in told
    assert str(tmp_path / "data" / "mongod.log") in told


def test_errors_in_the_log_of_this_start_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mongod.log").write_text('{"s": "F", "msg": "of yesterday"}\n')
    told = _failure_of(
        tmp_path,
        "#!/bin/sh\n"
        'while [ "$1" != --logpath ]; do shift; done\n'
        """echo '{"s": "I", "msg": "all is well"}' >> "$2"\n"""
        """echo '{"s": "E", "msg": "the data is of a newer version", "attr": {"found": "8.0"}}' >> "$2"\n"""
        "exit 62\n",
    )
    assert 'the data is of a newer version {"found": "8.0"}' in told
    assert "yesterday" not in told
    assert "all is well" not in told


def test_port_that_was_taken_is_tried_again(tmp_path: Path) -> None:
    told = _failure_of(
        tmp_path,
        f'#!/bin/sh\nwhile [ "$1" != --port ]; do shift; done\necho "$2" >> {tmp_path}/ports\nexit 48\n',
    )
    assert "ended with status 48" in told
    ports = (tmp_path / "ports").read_text().split()
    assert len(ports) == 5
    assert len(set(ports)) > 1


def test_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(EmbeddedMongodError, match="TURNSTORE_DATA_DIR"):
        EmbeddedMongod(tmp_path / "data", Path("/bin/true")).start()


def test_directory_can_be_used_after_a_failure(tmp_path: Path) -> None:
    _failure_of(tmp_path, "#!/bin/sh\nexit 1\n")
    assert "ended with status 2" in _failure_of(tmp_path, "#!/bin/sh\nexit 2\n")
