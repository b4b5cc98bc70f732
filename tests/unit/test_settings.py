"""What the environment may say, and what is answered when it says something else."""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.service_process import run_command
from turnstore_service.operations.addresses import Address
from turnstore_service.operations.settings import (
    Settings,
    SettingsError,
    load_settings,
    mask_uri,
    rows,
    unknown_variables,
    variables,
)


def _load(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> Settings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings()


def test_defaults_are_those_that_are_promised() -> None:
    assert {row.variable: row.value for row in rows()} == {
        "TURNSTORE_LISTEN": "127.0.0.1:50051",
        "TURNSTORE_METRICS_LISTEN": "127.0.0.1:9464",
        "TURNSTORE_HEALTH_LISTEN": "off",
        "TURNSTORE_AUTH": "none",
        "TURNSTORE_ALLOW_UNAUTHENTICATED": "false",
        "TURNSTORE_TOKENS_FILE": "",
        "TURNSTORE_JWT_JWKS": "",
        "TURNSTORE_JWT_JWKS_CA": "",
        "TURNSTORE_JWT_JWKS_TOKEN_FILE": "",
        "TURNSTORE_JWT_JWKS_REFRESH": "5m",
        "TURNSTORE_JWT_ISSUER": "",
        "TURNSTORE_JWT_AUDIENCE": "",
        "TURNSTORE_JWT_ALGORITHMS": "RS256,ES256",
        "TURNSTORE_JWT_LEEWAY": "30s",
        "TURNSTORE_JWT_NAMESPACE_CLAIM": "namespace",
        "TURNSTORE_JWT_RIGHTS": "read,write",
        "TURNSTORE_JWT_RIGHTS_CLAIM": "",
        "TURNSTORE_SERVER_TLS_CERT": "",
        "TURNSTORE_SERVER_TLS_KEY": "",
        "TURNSTORE_SERVER_TLS_CLIENT_CA": "",
        "TURNSTORE_CERTIFICATES_FILE": "",
        "TURNSTORE_MONGODB_URI": "",
        "TURNSTORE_MONGODB_URI_FILE": "",
        "TURNSTORE_MONGODB_DATABASE": "turnstore",
        "TURNSTORE_DATA_DIR": ".turnstore",
        "TURNSTORE_MONGOD": "",
        "TURNSTORE_MONGOD_CACHE": "256MiB",
        "TURNSTORE_LOG_LEVEL": "info",
        "TURNSTORE_LOG_FORMAT": "auto",
        "TURNSTORE_MAX_REQUEST_BYTES": "64MiB",
        "TURNSTORE_MAX_REPLY_BYTES": "3.5MiB",
        "TURNSTORE_DEFAULT_POLICY": "as_stored",
        "TURNSTORE_ABANDON_AFTER": "off",
        "TURNSTORE_ERASE_GRACE": "24h",
        "TURNSTORE_DEFAULT_DEADLINE": "30s",
        "TURNSTORE_MAX_DEADLINE": "5m",
        "TURNSTORE_POOL_SIZE": "24",
        "TURNSTORE_MAX_CALLS": "1000",
        "TURNSTORE_MAX_CALLS_PER_NAMESPACE": "500",
        "TURNSTORE_KEEPALIVE_TIME": "2m",
        "TURNSTORE_KEEPALIVE_TIMEOUT": "20s",
        "TURNSTORE_KEEPALIVE_MIN_INTERVAL": "30s",
        "TURNSTORE_MAX_CONNECTION_AGE": "5m",
        "TURNSTORE_MAX_CONNECTION_AGE_GRACE": "5m",
        "TURNSTORE_HEALTH_INTERVAL": "1s",
        "TURNSTORE_SHUTDOWN_PAUSE": "0s",
        "TURNSTORE_SHUTDOWN_GRACE": "20s",
        "TURNSTORE_REFLECTION": "true",
        "TURNSTORE_OTEL": "off",
        "TURNSTORE_WORKERS": "1",
        "TURNSTORE_UVLOOP": "true",
        "TURNSTORE_READY_FILE": "",
    }


def test_every_setting_is_described() -> None:
    assert [row.variable for row in rows() if not re.fullmatch(r"[A-Z].*\.", row.description)] == []


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("TURNSTORE_LISTEN", "[::1]:0", "listen", Address("::1", 0)),
        ("TURNSTORE_METRICS_LISTEN", "off", "metrics_listen", None),
        (
            "TURNSTORE_MONGODB_URI",
            "mongodb://a,b/?replicaSet=r",
            "mongodb_uri",
            "mongodb://a,b/?replicaSet=r",
        ),
        ("TURNSTORE_MONGODB_URI", "mongodb+srv://c.example", "mongodb_uri", "mongodb+srv://c.example"),
        ("TURNSTORE_MONGODB_DATABASE", "turns-2", "mongodb_database", "turns-2"),
        ("TURNSTORE_DATA_DIR", "/var/lib/turnstore", "data_dir", Path("/var/lib/turnstore")),
        ("TURNSTORE_MONGOD", "/usr/bin/mongod", "mongod", "/usr/bin/mongod"),
        ("TURNSTORE_MONGOD_CACHE", "1GiB", "mongod_cache", 2**30),
        ("TURNSTORE_LOG_LEVEL", "DEBUG", "log_level", "debug"),
        ("TURNSTORE_LOG_FORMAT", "console", "log_format", "console"),
        ("TURNSTORE_MAX_REQUEST_BYTES", "65536", "max_request_bytes", 65536),
        ("TURNSTORE_MAX_REPLY_BYTES", "64KiB", "max_reply_bytes", 65536),
        ("TURNSTORE_DEFAULT_POLICY", "model_safe", "default_policy", "model_safe"),
        ("TURNSTORE_ABANDON_AFTER", "15m", "abandon_after", timedelta(minutes=15)),
        ("TURNSTORE_ABANDON_AFTER", "off", "abandon_after", None),
        ("TURNSTORE_ERASE_GRACE", "0s", "erase_grace", timedelta(0)),
        ("TURNSTORE_DEFAULT_DEADLINE", "500ms", "default_deadline", timedelta(milliseconds=500)),
        ("TURNSTORE_MAX_DEADLINE", "1h", "max_deadline", timedelta(hours=1)),
        ("TURNSTORE_POOL_SIZE", "512", "pool_size", 512),
        ("TURNSTORE_MAX_CALLS", "501", "max_calls", 501),
        ("TURNSTORE_MAX_CALLS_PER_NAMESPACE", "999", "max_calls_per_namespace", 999),
        ("TURNSTORE_KEEPALIVE_TIME", "1s", "keepalive_time", timedelta(seconds=1)),
        ("TURNSTORE_KEEPALIVE_TIMEOUT", "100ms", "keepalive_timeout", timedelta(milliseconds=100)),
        ("TURNSTORE_KEEPALIVE_MIN_INTERVAL", "1ms", "keepalive_min_interval", timedelta(milliseconds=1)),
        ("TURNSTORE_MAX_CONNECTION_AGE", "off", "max_connection_age", None),
        ("TURNSTORE_MAX_CONNECTION_AGE", "1s", "max_connection_age", timedelta(seconds=1)),
        ("TURNSTORE_MAX_CONNECTION_AGE_GRACE", "24h", "max_connection_age_grace", timedelta(hours=24)),
        ("TURNSTORE_AUTH", "NONE", "auth", "none"),
        ("TURNSTORE_ALLOW_UNAUTHENTICATED", "true", "allow_unauthenticated", True),
        ("TURNSTORE_HEALTH_INTERVAL", "100ms", "health_interval", timedelta(milliseconds=100)),
        ("TURNSTORE_SHUTDOWN_PAUSE", "10m", "shutdown_pause", timedelta(minutes=10)),
        ("TURNSTORE_SHUTDOWN_GRACE", "0s", "shutdown_grace", timedelta(0)),
        ("TURNSTORE_REFLECTION", "false", "reflection", False),
        ("TURNSTORE_OTEL", "ON", "otel", "on"),
        ("TURNSTORE_WORKERS", "4", "workers", 4),
        ("TURNSTORE_UVLOOP", "0", "uvloop", False),
        ("TURNSTORE_READY_FILE", "ready.json", "ready_file", Path("ready.json")),
        ("turnstore_pool_size", "3", "pool_size", 3),
    ],
)
def test_value_is_taken(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: Any
) -> None:
    assert getattr(_load(monkeypatch, {variable: text}), field) == value


TOKENS = {"TURNSTORE_AUTH": "tokens", "TURNSTORE_TOKENS_FILE": "tokens.json"}
JWT = {
    "TURNSTORE_AUTH": "jwt",
    "TURNSTORE_JWT_JWKS": "https://issuer.example/jwks",
    "TURNSTORE_JWT_ISSUER": "https://issuer.example",
    "TURNSTORE_JWT_AUDIENCE": "turnstore",
}
TLS = {"TURNSTORE_SERVER_TLS_CERT": "tls.crt", "TURNSTORE_SERVER_TLS_KEY": "tls.key"}
MUTUAL = {**TLS, "TURNSTORE_SERVER_TLS_CLIENT_CA": "ca.crt"}


@pytest.mark.parametrize(
    ("environment", "field", "value"),
    [
        (TOKENS, "tokens_file", Path("tokens.json")),
        (JWT, "jwt_jwks", "https://issuer.example/jwks"),
        (JWT | {"TURNSTORE_JWT_JWKS": "/etc/jwks.json"}, "jwt_jwks", "/etc/jwks.json"),
        (JWT | {"TURNSTORE_JWT_JWKS": "http://127.0.0.1:8080/k"}, "jwt_jwks", "http://127.0.0.1:8080/k"),
        (JWT | {"TURNSTORE_JWT_JWKS_CA": "ca.crt"}, "jwt_jwks_ca", Path("ca.crt")),
        (JWT | {"TURNSTORE_JWT_JWKS_TOKEN_FILE": "token"}, "jwt_jwks_token_file", Path("token")),
        (JWT | {"TURNSTORE_JWT_JWKS_REFRESH": "1s"}, "jwt_jwks_refresh", timedelta(seconds=1)),
        (JWT, "jwt_issuer", "https://issuer.example"),
        (JWT, "jwt_audience", "turnstore"),
        (JWT | {"TURNSTORE_JWT_ALGORITHMS": "ES384, EdDSA"}, "jwt_algorithms", ("ES384", "EdDSA")),
        (JWT | {"TURNSTORE_JWT_LEEWAY": "0s"}, "jwt_leeway", timedelta(0)),
        (JWT | {"TURNSTORE_JWT_NAMESPACE_CLAIM": "a.b"}, "jwt_namespace_claim", "a.b"),
        (JWT | {"TURNSTORE_JWT_RIGHTS": "read"}, "jwt_rights", ("read",)),
        (JWT | {"TURNSTORE_JWT_RIGHTS_CLAIM": "scope"}, "jwt_rights_claim", "scope"),
        (TLS, "server_tls_cert", Path("tls.crt")),
        (TLS, "server_tls_key", Path("tls.key")),
        (MUTUAL, "server_tls_client_ca", Path("ca.crt")),
        (MUTUAL | {"TURNSTORE_CERTIFICATES_FILE": "c.json"}, "certificates_file", Path("c.json")),
    ],
)
def test_value_is_taken_with_those_it_needs(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], field: str, value: Any
) -> None:
    assert getattr(_load(monkeypatch, environment), field) == value


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"TURNSTORE_AUTH": "tokens"}, "AUTH=tokens needs TURNSTORE_TOKENS_FILE"),
        *(
            ({name: value for name, value in JWT.items() if name != left_out}, f"AUTH=jwt needs {left_out}")
            for left_out in JWT
            if left_out != "TURNSTORE_AUTH"
        ),
        (TOKENS | {"TURNSTORE_AUTH": "none"}, "TOKENS_FILE is of no effect without TURNSTORE_AUTH=tokens"),
        (JWT | {"TURNSTORE_AUTH": "none"}, "is of no effect without TURNSTORE_AUTH=jwt"),
        (TOKENS | {"TURNSTORE_JWT_RIGHTS": "read"}, "JWT_RIGHTS is of no effect without TURNSTORE_AUTH=jwt"),
        ({"TURNSTORE_SERVER_TLS_CERT": "c"}, "SERVER_TLS_CERT needs TURNSTORE_SERVER_TLS_KEY"),
        ({"TURNSTORE_SERVER_TLS_KEY": "k"}, "SERVER_TLS_KEY needs TURNSTORE_SERVER_TLS_CERT"),
        ({"TURNSTORE_SERVER_TLS_CLIENT_CA": "c"}, "SERVER_TLS_CLIENT_CA needs TURNSTORE_SERVER_TLS_CERT"),
        (
            TLS | {"TURNSTORE_CERTIFICATES_FILE": "c"},
            "CERTIFICATES_FILE needs TURNSTORE_SERVER_TLS_CLIENT_CA",
        ),
        (
            {"TURNSTORE_MAX_CALLS": "500"},
            "MAX_CALLS_PER_NAMESPACE (500) is not below TURNSTORE_MAX_CALLS (500)",
        ),
    ],
)
def test_settings_that_do_not_go_together(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(monkeypatch, environment)
    (told,) = refusal.value.problems
    assert problem in told


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "turnstore.example:1", "localhost.a:1"]
)
def test_without_credentials_it_listens_on_loopback_only(
    monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(monkeypatch, {"TURNSTORE_LISTEN": listen})
    (told,) = refusal.value.problems
    assert f"TURNSTORE_LISTEN={listen} can be reached by others" in told


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1", "LocalHost:1"])
def test_loopback_needs_no_credentials(monkeypatch: pytest.MonkeyPatch, listen: str) -> None:
    assert str(_load(monkeypatch, {"TURNSTORE_LISTEN": listen}).listen) == listen


@pytest.mark.parametrize(
    "environment",
    [
        {"TURNSTORE_ALLOW_UNAUTHENTICATED": "true"},
        TOKENS,
        JWT,
        MUTUAL | {"TURNSTORE_CERTIFICATES_FILE": "c.json"},
    ],
    ids=["allowed", "tokens", "jwt", "certificates"],
)
def test_it_listens_everywhere_with_credentials_or_when_told_so(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]
) -> None:
    assert not _load(monkeypatch, {**environment, "TURNSTORE_LISTEN": "0.0.0.0:1"}).listen.is_loopback


def test_certificates_without_a_mapping_are_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError):
        _load(monkeypatch, {**MUTUAL, "TURNSTORE_LISTEN": "0.0.0.0:1"})


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("TURNSTORE_AUTH", "basic", "must be 'none', 'tokens' or 'jwt'"),
        ("TURNSTORE_JWT_JWKS", "http://issuer.example/jwks", "must be a path or a URL with https"),
        ("TURNSTORE_JWT_JWKS", "ftp://issuer.example/jwks", "must be a path or a URL with https"),
        ("TURNSTORE_JWT_JWKS", "https://u:p@issuer.example/", "must be a URL without a user"),
        ("TURNSTORE_JWT_ALGORITHMS", "RS256,HS256", "must be one or more of RS256"),
        ("TURNSTORE_JWT_ALGORITHMS", "none", "must be one or more of RS256"),
        ("TURNSTORE_JWT_ALGORITHMS", "", "must be one or more of RS256"),
        ("TURNSTORE_JWT_RIGHTS", "read,delete", "must be one or more of read, write, erase"),
        ("TURNSTORE_JWT_RIGHTS", "read,read", "must be one or more of read, write, erase"),
        ("TURNSTORE_JWT_LEEWAY", "11m", "must be from 0s to 10m"),
        ("TURNSTORE_JWT_ISSUER", " ", "must not be empty"),
        ("TURNSTORE_MAX_CALLS", "1", "must be from 2 to 1000000"),
        ("TURNSTORE_MAX_CALLS_PER_NAMESPACE", "0", "must be from 1 to 1000000"),
        ("TURNSTORE_KEEPALIVE_TIME", "0s", "must be from 1s to 24h"),
        ("TURNSTORE_KEEPALIVE_TIMEOUT", "1ms", "must be from 100ms to 10m"),
        ("TURNSTORE_KEEPALIVE_MIN_INTERVAL", "25h", "must be from 1ms to 24h"),
        ("TURNSTORE_MAX_CONNECTION_AGE", "0s", "must be from 1s to 3650d"),
        ("TURNSTORE_MAX_CONNECTION_AGE_GRACE", "off", "must be a number and a unit"),
        ("TURNSTORE_LISTEN", "50051", "must be host:port"),
        ("TURNSTORE_LISTEN", "off", "must be host:port"),
        ("TURNSTORE_METRICS_LISTEN", "localhost:99999", "must end in a port from 0 to 65535"),
        ("TURNSTORE_MONGODB_URI", "", "must begin with mongodb://"),
        ("TURNSTORE_MONGODB_URI", "localhost:27017", "must begin with mongodb://"),
        ("TURNSTORE_MONGODB_URI", "mongodb://", "must be mongodb://[user:password@]host"),
        ("TURNSTORE_MONGODB_URI", "mongodb://h/?tlsCAFile=/no/such", "names a file that cannot be used"),
        ("TURNSTORE_MONGODB_DATABASE", "", "must be 1 to 63 bytes"),
        ("TURNSTORE_MONGODB_DATABASE", "a.b", "must be 1 to 63 bytes"),
        ("TURNSTORE_MONGODB_DATABASE", "admin", "is a database of MongoDB's own"),
        ("TURNSTORE_DATA_DIR", "", "must be a path"),
        ("TURNSTORE_MONGOD", " ", "must be a path"),
        ("TURNSTORE_MONGOD_CACHE", "255MiB", "must be from 256MiB to 1024GiB"),
        ("TURNSTORE_LOG_LEVEL", "verbose", "must be 'debug', 'info', 'warning' or 'error'"),
        ("TURNSTORE_LOG_FORMAT", "xml", "must be 'auto', 'json' or 'console'"),
        ("TURNSTORE_MAX_REQUEST_BYTES", "64MB", "must be a number of bytes"),
        ("TURNSTORE_MAX_REQUEST_BYTES", "2GiB", "must be from 64KiB to 1GiB"),
        ("TURNSTORE_MAX_REPLY_BYTES", "65535", "must be from 64KiB to 1GiB"),
        ("TURNSTORE_DEFAULT_POLICY", "safe", "must be 'as_stored' or 'model_safe'"),
        ("TURNSTORE_ABANDON_AFTER", "0s", "must be from 1s to 3650d"),
        ("TURNSTORE_ABANDON_AFTER", "never", "must be a number and a unit"),
        ("TURNSTORE_ERASE_GRACE", "24", "must be a number and a unit"),
        ("TURNSTORE_ERASE_GRACE", "off", "must be a number and a unit"),
        ("TURNSTORE_DEFAULT_DEADLINE", "10m", "is above TURNSTORE_MAX_DEADLINE (5m)"),
        ("TURNSTORE_MAX_DEADLINE", "2h", "must be from 100ms to 1h"),
        ("TURNSTORE_POOL_SIZE", "0", "must be from 1 to 512"),
        ("TURNSTORE_POOL_SIZE", "many", "must be a whole number"),
        ("TURNSTORE_HEALTH_INTERVAL", "1ms", "must be from 100ms to 1m"),
        ("TURNSTORE_SHUTDOWN_PAUSE", "11m", "must be from 0s to 10m"),
        ("TURNSTORE_SHUTDOWN_GRACE", "-1s", "must be a number and a unit"),
        ("TURNSTORE_REFLECTION", "maybe", "must be true or false"),
        ("TURNSTORE_OTEL", "true", "must be 'off' or 'on'"),
        ("TURNSTORE_WORKERS", "0", "must be from 1 to 64"),
        ("TURNSTORE_UVLOOP", "", "must be true or false"),
        ("TURNSTORE_READY_FILE", "", "must be a path"),
        ("TURNSTORE_METRICS_LISTEN", "127.0.0.1:50051", "are the same address"),
    ],
)
def test_bad_value_is_told_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, problem: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(monkeypatch, {variable: text})
    (told,) = refusal.value.problems
    assert variable in told
    assert problem in told


def test_every_problem_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(
            monkeypatch,
            {"TURNSTORE_POOL_SIZE": "x", "TURNSTORE_LISTN": "127.0.0.1:1", "TURNSTORE_LOG_LEVEL": "loud"},
        )
    assert [problem.split("=")[0].split(" ")[0] for problem in refusal.value.problems] == [
        "TURNSTORE_LOG_LEVEL",
        "TURNSTORE_POOL_SIZE",
        "TURNSTORE_LISTN",
    ]


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("TURNSTORE_LISTN", "did you mean TURNSTORE_LISTEN?"),
        ("TURNSTORE_MONGO_URI", "did you mean TURNSTORE_MONGODB_URI?"),
        ("TURNSTORE_MONGODB_DB", "did you mean TURNSTORE_MONGODB_"),
        ("TURNSTORE_MAX_REPLY", "did you mean TURNSTORE_MAX_REPLY_BYTES?"),
        ("TURNSTORE_SERVICE", "`turnstore-service --help` lists all"),
        ("TURNSTORE_XQZ", "`turnstore-service --help` lists all"),
        ("TURNSTORE_", "`turnstore-service --help` lists all"),
    ],
)
def test_unknown_variable_is_told_with_the_nearest_name(variable: str, advice: str) -> None:
    (told,) = unknown_variables({variable: "1"})
    assert told.startswith(f"{variable} is no setting")
    assert advice in told


@pytest.mark.parametrize(
    "variable",
    [
        *(
            "TURNSTORE_TARGET",
            "TURNSTORE_NAMESPACE",
            "TURNSTORE_USER",
            "TURNSTORE_TOKEN",
            "TURNSTORE_TOKEN_FILE",
        ),
        *("TURNSTORE_TIMEOUT", "TURNSTORE_TLS", "TURNSTORE_TLS_CA_FILE", "TURNSTORE_CLIENT_RETRIES"),
        *("TURNSTORE_TEST_MONGODB", "TURNSTORE_SERVICE_HOST", "TURNSTORE_SERVICE_PORT", "TURNSTORE_PORT"),
        *("TURNSTORE_SERVICE_PORT_GRPC", "TURNSTORE_PORT_50051_TCP", "TURNSTORE_PORT_50051_TCP_ADDR"),
        *(
            "TURNSTORE_HEADLESS_SERVICE_HOST",
            "TURNSTORE_MONGODB_PORT",
            "TURNSTORE_MONGODB_PORT_27017_TCP_PROTO",
        ),
        *("TURNSTOREX", "OTHER"),
    ],
)
def test_variable_of_others_is_let_be(variable: str) -> None:
    assert unknown_variables({variable: "tcp://10.0.0.1:50051"}) == []


def test_no_setting_has_a_name_that_kubernetes_could_give() -> None:
    link = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_.*)")
    assert [name for name in variables() if link.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("uri", "masked"),
    [
        ("mongodb://user:secret@h:1/?replicaSet=r", "mongodb://***@h:1/?replicaSet=r"),
        ("mongodb://user:se@cret/x@h", "mongodb://***@h"),
        (
            "mongodb://h/?tlsCertificateKeyFilePassword=secret&w=1",
            "mongodb://h/?tlsCertificateKeyFilePassword=***&w=1",
        ),
        ("mongodb://h/?AuthMechanismProperties=TOKEN:secret", "mongodb://h/?AuthMechanismProperties=***"),
        ("mongodb://h:1", "mongodb://h:1"),
        ("secret@h", "***@h"),
    ],
)
def test_secrets_of_a_uri_are_masked(uri: str, masked: str) -> None:
    assert mask_uri(uri) == masked


def test_bad_url_of_keys_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(monkeypatch, {"TURNSTORE_JWT_JWKS": "https://user:secret@issuer.example/jwks"})
    assert "secret" not in str(refusal.value)
    assert "https://***@issuer.example/jwks" in str(refusal.value)


def test_bad_uri_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as refusal:
        _load(monkeypatch, {"TURNSTORE_MONGODB_URI": "mongodb://user:se:cr@et@h:port/"})
    assert "se:cr" not in str(refusal.value)


def test_start_with_a_bad_setting_ends_with_status_2() -> None:
    ended = run_command("serve", settings={"TURNSTORE_POOL_SIZE": "0", "TURNSTORE_LISTN": "x"})
    assert ended.returncode == 2
    assert "TURNSTORE_POOL_SIZE=0: must be from 1 to 512." in ended.stderr
    assert "TURNSTORE_LISTN is no setting; did you mean TURNSTORE_LISTEN?" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["settings"]])
def test_help_lists_every_setting_with_its_default(arguments: list[str]) -> None:
    shown = run_command(*arguments, settings={})
    assert shown.returncode == 0
    for row in rows():
        expected = f"{row.variable}={row.value}" if row.value else f"{row.variable} (not set)"
        assert expected in shown.stdout
        assert row.description.split(".")[0] in " ".join(shown.stdout.split())


def test_markdown_table_has_a_row_for_each_setting() -> None:
    shown = run_command("settings", "--markdown", settings={})
    assert [line.split("`")[1] for line in shown.stdout.splitlines()[2:]] == variables()


def test_check_config_shows_what_is_in_effect_without_secrets() -> None:
    shown = run_command(
        "check-config",
        settings={"TURNSTORE_MONGODB_URI": "mongodb://user:secret@h/", "TURNSTORE_POOL_SIZE": "7"},
    )
    assert shown.returncode == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["TURNSTORE_POOL_SIZE", "7", "set"] in lines
    assert ["TURNSTORE_MAX_DEADLINE", "5m", "default"] in lines
    assert "mongodb://***@h/" in shown.stdout
    assert "secret" not in shown.stdout


def test_check_config_refuses_a_bad_setting() -> None:
    assert run_command("check-config", settings={"TURNSTORE_POOL_SIZE": "x"}).returncode == 2


@pytest.mark.parametrize(
    ("text", "status"), [('{"tokens": []}', 0), ('{"tokens": 1}', 1)], ids=["right", "wrong"]
)
def test_check_config_reads_the_files_that_settings_name(tmp_path: Path, text: str, status: int) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)
    settings = {
        "TURNSTORE_AUTH": "tokens",
        "TURNSTORE_TOKENS_FILE": str(file),
        "TURNSTORE_MONGODB_URI": "mongodb://h",
    }
    shown = run_command("check-config", settings=settings)
    assert shown.returncode == status
    assert (str(file) in shown.stderr) == bool(status)
    assert "Traceback" not in shown.stderr


def test_check_config_with_keys_behind_a_url_does_not_wait_for_them() -> None:
    shown = run_command("check-config", settings={**JWT, "TURNSTORE_MONGODB_URI": "mongodb://h"})
    assert (shown.returncode, shown.stderr) == (0, "")


def test_check_config_tells_that_there_is_no_mongod() -> None:
    shown = run_command("check-config", settings={"TURNSTORE_MONGOD": "/no/such/mongod"})
    assert shown.returncode == 1
    assert "TURNSTORE_MONGODB_URI=mongodb://" in shown.stderr
