"""What a provider remembers."""

import asyncio

from turnstore.adapters.azure_agentserver.memory import Origins, Recent


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (1, None, 3)


def test_a_key_has_its_last_value_until_it_is_forgotten() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("a", 2)
    recent.put("b", 3)
    assert recent.get("a") == 2
    recent.forget("a")
    recent.forget("never")
    assert (recent.get("a"), recent.get("b")) == (None, 3)


async def _elsewhere(origins: Origins, user: str | None, ids: list[str], response_id: str) -> None:
    """Another request remembers a list."""

    async def request() -> None:
        origins.remember(user, ids, response_id)

    await asyncio.create_task(request())


async def test_a_list_is_known_by_its_user_and_its_ids_in_order() -> None:
    origins = Origins()
    await _elsewhere(origins, "anna", ["a", "b"], "r")
    assert origins.parent_of("anna", ["a", "b"]) == "r"
    for user, ids in (
        ("anna", ["b", "a"]),
        ("anna", ["ab"]),
        ("anna", ["a"]),
        ("ben", ["a", "b"]),
        (None, []),
    ):
        assert origins.parent_of(user, ids) == ""


async def test_no_user_is_not_the_user_of_an_empty_name() -> None:
    origins = Origins()
    await _elsewhere(origins, None, ["a"], "of-nobody")
    assert origins.parent_of("", ["a"]) == ""
    # A user's name is no part of the list either.
    await _elsewhere(origins, "a", ["b"], "of-a")
    assert origins.parent_of(None, ["a", "b"]) == ""


async def test_the_request_s_own_list_comes_first() -> None:
    origins = Origins()
    origins.remember(None, ["a"], "mine")
    await _elsewhere(origins, None, ["a"], "of-another")
    assert origins.parent_of(None, ["a"]) == "mine"
    assert await asyncio.create_task(_asked_in_a_task(origins)) == "mine"


async def _asked_in_a_task(origins: Origins) -> str:
    return origins.parent_of(None, ["a"])


async def test_the_empty_list_counts_within_its_request_alone() -> None:
    origins = Origins()
    await _elsewhere(origins, None, [], "of-another")
    assert origins.parent_of(None, []) == ""
    origins.remember(None, [], "mine")
    assert origins.parent_of(None, []) == "mine"


def test_what_one_provider_was_given_is_nothing_to_another() -> None:
    origins, others = Origins(), Origins()
    others.remember(None, ["a"], "r")
    assert origins.parent_of(None, ["a"]) == ""
