"""A mongod as a child process: a replica set of one member on loopback, which ends with the service."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from turnstore_service.embedded import watchdog
from turnstore_service.embedded.binary import THREE_WAYS
from turnstore_service.embedded.directory_lock import DirectoryLock
from turnstore_service.embedded.errors import EmbeddedMongodError

REPLICA_SET = "turnstore"
"""Majority writes and transactions exist in replica sets only, so the one process is one."""

START_SECONDS = 60.0
"""How long a start may take. It takes about 1 s; after a kill the journal is replayed first."""

STOP_SECONDS = watchdog.END_SECONDS + 2.0
"""How long the watchdog is waited for."""

PREDECESSOR_SECONDS = 10.0
"""How long the mongod of a killed service is waited for; its watchdog ends it within 3 s."""

LOG_BYTES = 16 * 1024 * 1024
"""A log larger than this is put aside at the next start; one older log is kept."""

_PORT_IN_USE = 48
"""mongod's exit status when it cannot listen. Between choosing a port and listening, somebody else can take
it."""
_PORT_TRIES = 5

_NOT_INITIATED = 94
_ALREADY_INITIATED = 23
_POLL_SECONDS = 0.02


class EmbeddedMongod:
    """A mongod that keeps its data in a directory and is ended with the process that started it.

    In the directory: `db` (the data), `mongod.log`, `mongod.out` (what it wrote before it had a log), and two
    lock files. `service.lock` is held by this process, so that a second one is refused. `mongod.lock` is held
    by the watchdog and mongod, so that a start can wait for those of a killed service to be gone.
    """

    def __init__(self, data_dir: Path, binary: Path, cache_bytes: int = 256 * 1024 * 1024) -> None:
        """Starts nothing yet.

        Args:
            data_dir: Made when it is not there, readable by its owner alone.
            binary: The mongod program.
            cache_bytes: Size of the storage engine's cache, at least 256 MiB.
        """
        self.data_dir = data_dir.absolute()
        self._binary = binary
        self._cache_bytes = cache_bytes
        self._service_lock = DirectoryLock(self.data_dir / "service.lock")
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def uri(self) -> str:
        """The address for clients, once started."""
        return f"mongodb://127.0.0.1:{self._port}/?replicaSet={REPLICA_SET}"

    @property
    def log_path(self) -> Path:
        """Where mongod logs to."""
        return self.data_dir / "mongod.log"

    @property
    def exit_status(self) -> int | None:
        """None while it runs; else mongod's exit status, or 128 plus the signal that ended it."""
        return None if self._watchdog is None else self._watchdog.poll()

    def start(self) -> None:
        """Starts mongod, makes it a replica set of one, and returns when it takes writes (about 1 s).

        Blocks; may be called from any thread.

        Raises:
            EmbeddedMongodError: The directory is in use, or mongod did not start. Nothing is left running.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.data_dir / "db").mkdir(mode=0o700, exist_ok=True)
            locked = self._service_lock.acquire()
        except OSError as error:
            raise EmbeddedMongodError(
                f"The data directory {self.data_dir} cannot be used: {error.strerror}. "
                "Set TURNSTORE_DATA_DIR to a directory that can be written."
            ) from error
        if not locked:
            holder = self._service_lock.read()
            raise EmbeddedMongodError(
                f"The data directory {self.data_dir} is in use by another service"
                f"{f' (process {holder})' if holder else ''}. Stop that one, or give this one another "
                "directory by TURNSTORE_DATA_DIR, or let both use one MongoDB by TURNSTORE_MONGODB_URI."
            )
        try:
            self._service_lock.write(str(os.getpid()))
            self._start_locked()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends mongod (about 1 s) and waits until it is gone. May be called again."""
        if self._watchdog is not None:
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
            try:
                self._watchdog.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._watchdog.kill()  # mongod goes with it
                self._watchdog.wait()
        self._service_lock.release()

    def _start_locked(self) -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        log_began = self.log_path.stat().st_size if self.log_path.exists() else 0
        ends = time.monotonic() + START_SECONDS
        for _ in range(_PORT_TRIES):
            self._launch()
            self._await_listening(ends)
            if self.exit_status != _PORT_IN_USE:
                break
        if self.exit_status is not None:
            raise self._failure(log_began)
        try:
            with pymongo.MongoClient[dict[str, Any]](
                "127.0.0.1", self._port, directConnection=True, serverSelectionTimeoutMS=2000
            ) as client:
                self._become_primary(client, ends)
        except PyMongoError as error:
            raise self._failure(log_began) from error

    def _launch(self) -> None:
        lock = DirectoryLock(self.data_dir / "mongod.lock")
        if not lock.acquire(PREDECESSOR_SECONDS):
            raise EmbeddedMongodError(
                f"The mongod of an earlier service on {self.data_dir} is still running, though its service "
                f"is gone. End it (fuser {lock.path} names its process) and start again."
            )
        self._port = _free_port()
        command = [
            *(str(self._binary), "--dbpath", str(self.data_dir / "db")),
            *("--bind_ip", "127.0.0.1", "--port", str(self._port), "--nounixsocket"),
            *("--replSet", REPLICA_SET),
            *("--logpath", str(self.log_path), "--logappend", "--quiet"),
            *("--wiredTigerCacheSizeGB", f"{self._cache_bytes / 2**30:.4f}"),
            # The log of operations serves other members and change streams; there are none, and by default it
            # would be given a twentieth of the disk.
            *("--oplogSize", "256"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        ]
        try:
            with (self.data_dir / "mongod.out").open("wb") as output:
                self._watchdog = subprocess.Popen(
                    # -I and -S: the watchdog needs the standard library alone, and starts faster so.
                    [sys.executable, "-I", "-S", watchdog.__file__, str(lock.descriptor), *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(lock.descriptor,),
                    start_new_session=True,
                )
        finally:
            lock.release()  # from here on it is the children's

    def _await_listening(self, ends: float) -> None:
        while self.exit_status is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            if time.monotonic() >= ends:
                raise EmbeddedMongodError(
                    f"The embedded mongod did not listen in {START_SECONDS:g} s; its log is {self.log_path}."
                )
            time.sleep(_POLL_SECONDS)

    def _become_primary(self, client: "pymongo.MongoClient[dict[str, Any]]", ends: float) -> None:
        if client.admin.command("getCmdLineOpts")["parsed"]["storage"]["dbPath"] != str(self.data_dir / "db"):
            # Ours lost the race for the port to another mongod.
            raise EmbeddedMongodError("The embedded mongod's port was taken by another one; start again.")
        while not client.admin.command("hello").get("isWritablePrimary"):
            self._configure(client)
            if time.monotonic() >= ends:
                raise EmbeddedMongodError(
                    f"The embedded mongod took no writes in {START_SECONDS:g} s; its log is {self.log_path}."
                )
            time.sleep(_POLL_SECONDS)

    def _configure(self, client: "pymongo.MongoClient[dict[str, Any]]") -> None:
        """Makes the replica set, or gives its member the present address, unless that stands already."""
        address = f"127.0.0.1:{self._port}"
        try:
            config = client.admin.command("replSetGetConfig")["config"]
        except OperationFailure as error:
            if error.code != _NOT_INITIATED:
                raise
            try:
                client.admin.command(
                    "replSetInitiate", {"_id": REPLICA_SET, "members": [{"_id": 0, "host": address}]}
                )
            except OperationFailure as refusal:
                # A stored configuration is loaded a moment after mongod listens: then it is there at the next
                # look.
                if refusal.code != _ALREADY_INITIATED:
                    raise
            return
        if config["_id"] != REPLICA_SET or len(config["members"]) != 1:
            raise EmbeddedMongodError(
                f"The data in {self.data_dir} belongs to another replica set ({config['_id']}). "
                "Set TURNSTORE_DATA_DIR to a directory of the embedded store."
            )
        if config["members"][0]["host"] != address:
            # On another port than last time the member does not recognise itself, and only a forced change is
            # taken.
            config["members"][0]["host"] = address
            client.admin.command("replSetReconfig", config, force=True)

    def _failure(self, log_began: int) -> EmbeddedMongodError:
        """Says why mongod ended, from what it wrote."""
        status = self.exit_status
        output = (self.data_dir / "mongod.out").read_text(errors="replace")
        missing = re.search(r"error while loading shared libraries: (\S+?):", output)
        if missing:
            return EmbeddedMongodError(
                f"{self._binary} needs the library {missing[1]}, which this system does not have. "
                f"{_package_of(missing[1])}\n{THREE_WAYS}"
            )
        if status is not None and status == 128 + signal.SIGILL:
            return EmbeddedMongodError(
                f"{self._binary} cannot run on this processor: MongoDB 5 and newer need AVX.\n{THREE_WAYS}"
            )
        if status == watchdog.CANNOT_EXECUTE:
            return EmbeddedMongodError(f"mongod cannot be executed: {output.strip()}.\n{THREE_WAYS}")
        reasons = [*self._logged_errors(log_began), *output.splitlines()][:5]
        ended = "does not answer" if status is None else f"ended with status {status}"
        return EmbeddedMongodError(
            "\n  ".join([f"The embedded mongod {ended}; its log is {self.log_path}.", *reasons])
        )

    def _logged_errors(self, log_began: int) -> list[str]:
        if not self.log_path.exists():
            return []
        with self.log_path.open("rb") as log:
            log.seek(log_began)
            lines = log.read().splitlines()
        errors = []
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry["s"] in "EF":
                    errors.append(f"{entry['msg']} {json.dumps(entry.get('attr', {}))}")
        return errors


def _package_of(library: str) -> str:
    if library.startswith(("libssl", "libcrypto")):
        return "Install OpenSSL 3 (Debian and Ubuntu: apt-get install libssl3)."
    if library.startswith("libcurl"):
        return "Install libcurl 4 (Debian and Ubuntu: apt-get install libcurl4)."
    return "Install the package that holds it."


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
