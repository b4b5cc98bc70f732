"""Rules that are wrong in one place are found by the comparison with the model: proof that it can fail.

Each mutation is made in a copy of the package, and a service runs from the copy.
"""

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

import turnstore_service
from tests.conftest import StartService
from tests.sequences import Side, difference, model_side, sequence
from tests.service_driver import ServiceDriver

PACKAGE = Path(turnstore_service.__file__).parent
SEQUENCES = 400
"""Sequences of calls in which a mutation has to show; most show in the first twenty."""


@dataclass(frozen=True)
class Mutation:
    """A rule made wrong."""

    name: str
    file: str
    right: str
    wrong: str


MUTATIONS = (
    Mutation(
        "the output goes to the oldest call",
        "replay/rules.py",
        "call = calls.pop()",
        "call = calls.pop(0)",
    ),
    Mutation(
        "an unanswered call of the last turn does not wait",
        "replay/rules.py",
        "return last.status in _WAITS_AFTER and call.key is not None and call.key == last.key",
        "return False",
    ),
    Mutation(
        "reasoning stays when what follows it goes",
        "replay/rules.py",
        "entry.reason = Reason.TIED_REASONING",
        "pass",
    ),
    Mutation(
        "a limit tears units apart under WHOLE",
        "replay/rules.py",
        "entries[index].reason = Reason.SPLIT_UNIT",
        "pass",
    ),
    Mutation(
        "an id that stands twice is kept at its last place too",
        "replay/rules.py",
        "return Reason.DUPLICATE",
        "return None",
    ),
    Mutation(
        "a snapshot is not filtered",
        "replay/rules.py",
        "Reason.NO_CONTRIBUTOR if item.known else None",
        "None",
    ),
    Mutation(
        "a failed turn contributes",
        "storage/mongo/documents.py",
        "return status is not Status.FAILED and not excluded",
        "return not excluded",
    ),
)


def _mutated(mutation: Mutation, directory: Path) -> Path:
    copy = directory / "turnstore_service"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / mutation.file
    source = path.read_text()
    assert source.count(mutation.right) == 1, f"{mutation.file} has changed: mend the mutation"
    path.write_text(source.replace(mutation.right, mutation.wrong))
    if mutation.file.startswith("storage"):
        # The rule itself stands in the rules; what the store reads is only kept in step with it.
        rules = copy / "replay" / "rules.py"
        source = rules.read_text()
        assert source.count("if status is Status.FAILED:") == 1
        rules.write_text(source.replace("if status is Status.FAILED:", "if False:"))
    return directory


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
async def test_a_wrong_rule_is_found(mutation: Mutation, start_service: StartService, tmp_path: Path) -> None:
    directory = _mutated(mutation, tmp_path / "copy")
    service = start_service({"PYTHONPATH": str(directory)}).wait_ready()
    async with grpc.aio.insecure_channel(service.target) as channel:
        for seed in range(SEQUENCES):
            driver = ServiceDriver(channel, namespace=f"mutation-{uuid.uuid4()}")
            if await difference(sequence(seed), model_side(), Side(driver)):
                return
    pytest.fail(f"no difference in {SEQUENCES} sequences")
