"""Every replay case holds for a service behind a real channel."""

import uuid
from pathlib import Path

import grpc
import pytest

from tests.case_player import case_files, load, play
from tests.service_driver import ServiceDriver


@pytest.mark.parametrize("path", case_files(), ids=lambda path: path.stem)
async def test_case_holds_for_the_service(path: Path, history_channel: grpc.aio.Channel) -> None:
    await play(load(path), ServiceDriver(history_channel, namespace=f"case-{uuid.uuid4()}"))
