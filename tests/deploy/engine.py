"""The container engine that the tests marked `container` need, by DOCKER_HOST or where engines usually listen.

TURNSTORE_TEST_BASE_IMAGE names the image that ours is built from, TURNSTORE_TEST_MONGODB_IMAGE the MongoDB beside it;
both have to be there already. TURNSTORE_TEST_CONTAINERS=required makes it a failure when something is missing.
"""

import os
import re

import pytest

from tests.database import DEFAULT_IMAGE, IMAGE, KIND, NoDatabaseError, choose
from tests.deploy.tools import DEPLOY

BASE = "TURNSTORE_TEST_BASE_IMAGE"
REQUIRED = "TURNSTORE_TEST_CONTAINERS"


def mongodb_image() -> str:
    """The image of MongoDB."""
    return os.environ.get(IMAGE, DEFAULT_IMAGE)


def base_image() -> str:
    """The image that ours is built from; the Dockerfile's own unless told otherwise."""
    default = re.search(r"^ARG BASE_IMAGE=(.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert default is not None
    return os.environ.get(BASE, default[1])


def missing() -> str | None:
    """What is missing for the tests; None when they can run."""
    for image in (base_image(), mongodb_image()):
        try:
            choose({KIND: "container", IMAGE: image})
        except NoDatabaseError as error:
            return str(error).removeprefix(f"{KIND}=container, but ")
    return None


def need_engine() -> None:
    """Skips the test when something is missing, or fails it where that must not be."""
    problem = missing()
    if problem is None:
        return
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"the tests with containers cannot run: {problem}")
    pytest.skip(f"CHECK DID NOT RUN: {problem}. `make deploy-check` with an engine runs it")
