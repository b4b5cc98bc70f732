"""Replica sets of a test's own, whose members can be killed, stopped and told to fail."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymongo

from tests.processes import processes_with, wait_until
from turnstore_service.embedded import watchdog
from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.directory_lock import DirectoryLock

NAME = "faults"
START_SECONDS = 60.0
ELECTION_MILLISECONDS = 1000
"""How long the members do without a primary before they vote. The default of 10 s only makes tests wait."""


class Member:
    """One mongod. It ends with the test's process, however that ends."""

    def __init__(self, directory: Path, parameters: Mapping[str, str], *, alone: bool = False) -> None:
        """Starts nothing yet. `alone`: a server without replication."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._data = directory / "db"
        self._data.mkdir(parents=True)
        self._lock_path = directory / "mongod.lock"
        self._command = [
            *(str(find_mongod(None)), "--dbpath", str(self._data)),
            *("--bind_ip", "127.0.0.1", "--port", str(self.port), "--nounixsocket"),
            *(() if alone else ("--replSet", NAME, "--oplogSize", "64")),
            *("--logpath", str(directory / "mongod.log"), "--logappend", "--quiet"),
            *("--wiredTigerCacheSizeGB", "0.5"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        ]
        for name, value in parameters.items():
            self._command += ["--setParameter", f"{name}={value}"]
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        (pid,) = [pid for pid, name in processes_with(str(self._data)).items() if name == "mongod"]
        return pid

    def start(self) -> None:
        lock = DirectoryLock(self._lock_path)
        assert lock.acquire(10), f"{self._lock_path} is still held"
        try:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, str(lock.descriptor), *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock.descriptor,),
                start_new_session=True,
            )
        finally:
            lock.release()

    def pause(self) -> None:
        """Stops it without ending it; returns when none of its threads does anything any more."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)

        def stands_still() -> bool:
            states = [
                (task / "stat").read_text().rpartition(")")[2].split()[0]
                for task in Path(f"/proc/{pid}/task").iterdir()
            ]
            return set(states) == {"T"}

        wait_until(stands_still, 10, f"mongod {pid} has stopped")

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends it as a power failure would: its watchdog's death takes it along. May be called again."""
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()

    def client(self) -> "pymongo.MongoClient[dict[str, Any]]":
        return pymongo.MongoClient(self.address, directConnection=True, serverSelectionTimeoutMS=20_000)


class ReplicaSet:
    """Members on loopback, started and with a primary."""

    def __init__(self, directory: Path, size: int, parameters: Mapping[str, str] | None = None) -> None:
        self.members = [Member(directory / f"member-{n}", parameters or {}) for n in range(size)]

    @property
    def uri(self) -> str:
        return f"mongodb://{','.join(member.address for member in self.members)}/?replicaSet={NAME}"

    def start(self) -> None:
        for member in self.members:
            member.start()
        for member in self.members:
            with member.client() as client:
                client.admin.command("ping")
        with self.members[0].client() as client:
            client.admin.command(
                "replSetInitiate",
                {
                    "_id": NAME,
                    "members": [{"_id": n, "host": m.address} for n, m in enumerate(self.members)],
                    "settings": {"electionTimeoutMillis": ELECTION_MILLISECONDS},
                },
            )
        self.wait_healthy()

    def stop(self) -> None:
        """Ends all members, whose data nobody wants any more."""
        for member in self.members:
            member.kill()

    def states(self, asked: Member) -> dict[str, str]:
        """The state of each member as one of them sees it, by address."""
        with asked.client() as client:
            status = client.admin.command("replSetGetStatus")
        return {member["name"]: member["stateStr"] for member in status["members"]}

    def wait_healthy(self) -> None:
        """Returns when one member is primary and the others follow."""

        def healthy() -> bool:
            states = sorted(self.states(self.members[0]).values())
            return states == ["PRIMARY", *["SECONDARY"] * (len(self.members) - 1)]

        wait_until(healthy, START_SECONDS, "the replica set has a primary, and its other members follow it")
        with pymongo.MongoClient[dict[str, Any]](self.uri) as client:
            client.admin.command("hello")

    def primary(self) -> Member:
        with pymongo.MongoClient[dict[str, Any]](self.uri) as client:
            client.admin.command("ping")
            address = client.primary
        assert address is not None
        (member,) = [member for member in self.members if member.port == address[1]]
        return member

    @contextmanager
    def failing(self, commands: Sequence[str], times: int | None = None, **how: Any) -> "Iterator[FailPoint]":
        """Makes the primary fail these commands of the service; `how` is the data of the server's own fail point
        failCommand, `times` how often. Needs the parameter enableTestCommands.
        """
        mode: Any = "alwaysOn" if times is None else {"times": times}
        with self.primary().client() as client:
            answer = client.admin.command(
                "configureFailPoint",
                "failCommand",
                mode=mode,
                data={"failCommands": list(commands), "appName": "turnstore", **how},
            )
            try:
                yield FailPoint(client, answer["count"])
            finally:
                client.admin.command("configureFailPoint", "failCommand", mode="off")


class FailPoint:
    """The server's own fail point failCommand, switched on."""

    def __init__(self, client: "pymongo.MongoClient[dict[str, Any]]", count: int) -> None:
        self._client = client
        self._count = count

    async def reached(self) -> None:
        """Returns when a command has met it."""
        await asyncio.to_thread(
            self._client.admin.command,
            "waitForFailPoint",
            "failCommand",
            timesEntered=self._count + 1,
            maxTimeMS=int(START_SECONDS * 1000),
        )


@contextmanager
def replica_set(
    directory: Path, size: int, parameters: Mapping[str, str] | None = None
) -> Iterator[ReplicaSet]:
    """A replica set that is ended after the block."""
    members = ReplicaSet(directory, size, parameters)
    try:
        members.start()
        yield members
    finally:
        members.stop()
