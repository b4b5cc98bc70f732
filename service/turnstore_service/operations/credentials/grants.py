"""Files that grant a namespace and rights to credentials.

They are JSON: an object with one list, whose entries have `namespace`, `rights` (one or more of `read`,
`write`, `erase`), and what says whose they are:

    {"tokens": [{"token": "…", "namespace": "acme", "rights": ["read", "write"]}]}
"""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from turnstore_service.operations.live_files import FileError
from turnstore_service.rpc import parsing
from turnstore_service.rpc.access import Principal, Right
from turnstore_service.rpc.errors import ApiError


def read_grants(path: Path, name: str, holders: Collection[str]) -> Iterator[tuple[str, str, str, Principal]]:
    """The entries of a file: where each stands, which field says whose it is, what that says, what it grants.

    Args:
        path: The file.
        name: Of the list in it.
        holders: The fields of which each entry must have one, a text.

    Raises:
        FileError: The file is not of this form.
        OSError: It cannot be read.
    """
    try:
        document = json.loads(path.read_bytes(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        # The parser's words may repeat what it found.
        raise FileError(f"{path} is not JSON, or has a key twice") from None
    if not isinstance(document, dict) or set(document) != {name} or not isinstance(document[name], list):
        raise FileError(f'{path} must be an object with one list in it, {{"{name}": [...]}}')
    for index, entry in enumerate(document[name]):
        where = f"{path}: {name}[{index}]"
        if not isinstance(entry, dict):
            raise FileError(f"{where} must be an object")
        named = sorted(set(entry) & set(holders))
        if len(named) != 1:
            raise FileError(f"{where} must have one of {', '.join(holders)}")
        if strange := sorted(set(entry) - {"namespace", "rights", *holders}):
            raise FileError(f"{where} has fields that are not known: {', '.join(strange)}")
        (holder,) = named
        if not isinstance(entry[holder], str) or not entry[holder]:
            raise FileError(f"{where}.{holder} must be a text that is not empty")
        yield where, holder, entry[holder], Principal(_namespace(entry, where), _rights(entry, where))


def _namespace(entry: Mapping[str, Any], where: str) -> str:
    namespace = entry.get("namespace")
    if not isinstance(namespace, str) or not namespace:
        raise FileError(f"{where}.namespace must be a text that is not empty")
    try:
        return parsing.namespace(f"{where}.namespace", namespace)
    except ApiError as error:
        raise FileError(error.message) from None


def _rights(entry: Mapping[str, Any], where: str) -> frozenset[Right]:
    rights = entry.get("rights")
    if not isinstance(rights, list) or not rights or not all(right in list(Right) for right in rights):
        raise FileError(f"{where}.rights must be a list of one or more of {', '.join(Right)}")
    return frozenset(map(Right, rights))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
