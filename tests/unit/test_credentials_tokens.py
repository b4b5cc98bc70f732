"""Bearer tokens from a file."""

import hashlib
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from tests.credentials import Caller, accepted, refusal, replace, tokens_json
from turnstore_service.operations import live_files
from turnstore_service.operations.credentials.tokens import TokenAccess
from turnstore_service.operations.live_files import FileError
from turnstore_service.rpc.access import Principal, Right

TOKEN = "token-of-acme-0001"
OTHER = "token-of-others-02"
ACME = Principal("acme", frozenset({Right.READ, Right.WRITE}))


@pytest.fixture(autouse=True)
def files_are_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a token that was taken away is refused at once."""
    monkeypatch.setattr(live_files, "LOOK_SECONDS", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    path.write_text(tokens_json((TOKEN, "acme", ["read", "write"]), (OTHER, "others", ["erase"])))
    return path


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_token_is_accepted_with_its_namespace_and_rights(file: Path, scheme: str) -> None:
    access = TokenAccess(file)
    assert await accepted(access, Caller(f"{scheme} {TOKEN}")) == ACME
    assert await accepted(access, Caller(f"{scheme} {OTHER}")) == Principal(
        "others", frozenset({Right.ERASE})
    )


async def test_token_that_the_file_has_as_a_digest_is_accepted(file: Path) -> None:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    entry = {"sha256": digest.upper(), "namespace": "acme", "rights": ["read", "write"]}
    replace(file, json.dumps({"tokens": [entry]}))
    access = TokenAccess(file)
    assert await accepted(access, Caller(f"Bearer {TOKEN}")) == ACME
    await refusal(access, Caller(f"Bearer {digest}"))


@pytest.mark.parametrize(
    ("authorization", "problem"),
    [
        ([], "no credential"),
        (["Bearer "], "not of the form"),
        (["Bearer"], "not of the form"),
        ([TOKEN], "not of the form"),
        ([f"Basic {TOKEN}"], "not of the form"),
        ([f"Bearer {TOKEN}", f"Bearer {TOKEN}"], "more than one"),
        (["Bearer not-a-token-at-all"], "not accepted"),
        ([f"Bearer {TOKEN[:-1]}"], "not accepted"),
        ([f"Bearer {TOKEN}x"], "not accepted"),
        (["Bearer \udcff"], "not of the form"),
        ([f"Bearer {TOKEN}\xa0"], "not of the form"),
    ],
)
async def test_anything_else_is_refused(file: Path, authorization: list[str], problem: str) -> None:
    error = await refusal(TokenAccess(file), Caller(authorization))
    assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID")
    assert problem in error.message
    assert TOKEN[:-1] not in error.message


async def test_tokens_are_those_that_the_file_has_now(file: Path) -> None:
    access = TokenAccess(file)
    replace(file, tokens_json(("a-new-token-for-acme", "acme", ["read", "write"])))
    assert await accepted(access, Caller("Bearer a-new-token-for-acme")) == ACME
    await refusal(access, Caller(f"Bearer {TOKEN}"))


async def test_file_that_cannot_be_used_leaves_the_tokens_as_they_were(file: Path) -> None:
    access = TokenAccess(file)
    with structlog.testing.capture_logs() as lines:
        replace(file, '{"tokens": [')
        assert await accepted(access, Caller(f"Bearer {TOKEN}")) == ACME
    (line,) = lines
    assert line["log_level"] == "error"
    assert TOKEN not in str(line)


async def test_file_without_tokens_lets_nobody_in(file: Path) -> None:
    replace(file, '{"tokens": []}')
    await refusal(TokenAccess(file), Caller(f"Bearer {TOKEN}"))


GOOD = {"token": TOKEN, "namespace": "acme", "rights": ["read"]}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (None, "is not JSON"),
        ([], "must be an object with one list"),
        ({}, "must be an object with one list"),
        ({"tokens": {}}, "must be an object with one list"),
        ({"tokens": [], "more": 1}, "must be an object with one list"),
        ({"tokens": [TOKEN]}, "tokens[0] must be an object"),
        ({"tokens": [{**GOOD, "sha256": "0" * 64}]}, "tokens[0] must have one of token, sha256"),
        ({"tokens": [{"namespace": "acme", "rights": ["read"]}]}, "must have one of token, sha256"),
        ({"tokens": [GOOD | {"expires": 1}]}, "fields that are not known: expires"),
        ({"tokens": [GOOD | {"token": 5}]}, "tokens[0].token must be a text"),
        ({"tokens": [GOOD | {"token": ""}]}, "tokens[0].token must be a text"),
        ({"tokens": [GOOD | {"token": "x" * 15}]}, "tokens[0].token must be 16 or more"),
        ({"tokens": [GOOD | {"token": "two words that are long"}]}, "tokens[0].token must be 16 or more"),
        ({"tokens": [GOOD | {"token": "ünïcödé-of-many-chars"}]}, "tokens[0].token must be 16 or more"),
        (
            {"tokens": [{"sha256": "0" * 63, "namespace": "a", "rights": ["read"]}]},
            "must be 64 hexadecimal digits",
        ),
        ({"tokens": [GOOD | {"namespace": ""}]}, "tokens[0].namespace must be a text"),
        ({"tokens": [GOOD | {"namespace": None}]}, "tokens[0].namespace must be a text"),
        ({"tokens": [GOOD | {"namespace": "x" * 257}]}, "namespace has 257 characters"),
        ({"tokens": [GOOD | {"namespace": "a\nb"}]}, "namespace has a control character"),
        ({"tokens": [GOOD | {"rights": []}]}, "tokens[0].rights must be a list of one or more"),
        ({"tokens": [GOOD | {"rights": "read"}]}, "tokens[0].rights must be a list of one or more"),
        ({"tokens": [GOOD | {"rights": ["read", "admin"]}]}, "tokens[0].rights must be a list"),
        ({"tokens": [GOOD, GOOD]}, "tokens[1] is the same token"),
    ],
)
def test_file_of_another_form_is_refused_with_the_place(file: Path, document: Any, problem: str) -> None:
    replace(file, "{" if document is None else json.dumps(document))
    with pytest.raises(FileError) as told:
        TokenAccess(file)
    assert problem in str(told.value)
    assert str(file) in str(told.value)
    assert TOKEN not in str(told.value)


def test_key_that_stands_twice_is_refused(file: Path) -> None:
    replace(file, '{"tokens": [], "tokens": []}')
    with pytest.raises(FileError, match="has a key twice"):
        TokenAccess(file)
