"""Values that are not in use stay, in little memory."""

import secrets

import pytest

from trainingjob_operator.shell.cold_cache import ColdCache

KEYS = ("a", "b", "c", "d")


@pytest.fixture
def cache() -> ColdCache[list[int]]:
    """Return a cache with four values, two of which are warm."""
    filled = ColdCache[list[int]](num_warm=2)
    for number, key in enumerate(KEYS):
        filled[key] = [number] * 1000
    return filled


def test_every_value_is_kept(cache: ColdCache[list[int]]) -> None:
    assert len(cache) == len(KEYS)
    assert [cache.get(key) for key in KEYS] == [[number] * 1000 for number in range(len(KEYS))]
    assert len(cache) == len(KEYS)
    assert cache.get("e") is None


def test_the_values_used_last_are_not_copied(cache: ColdCache[list[int]]) -> None:
    newest, oldest = cache.get("d"), cache.get("a")

    assert cache.get("d") is newest
    assert cache.get("a") is oldest
    assert set(cache._cold) == {"b", "c"}
    assert sum(map(len, cache._cold.values())) < 200


@pytest.mark.parametrize("key", ["a", "d", "e"])
def test_a_value_is_replaced_and_removed(cache: ColdCache[list[int]], key: str) -> None:
    cache[key] = [9]
    assert cache.get(key) == [9]

    cache.pop(key)
    cache.pop(key)

    assert cache.get(key) is None
    assert len(cache) == len(set(KEYS) - {key})


def test_text_that_values_have_in_common_is_stored_once() -> None:
    common = secrets.token_hex(4000)
    cache = ColdCache[str](num_warm=1)
    for number in range(50):
        cache[str(number)] = f"{common} {number}"

    assert sum(map(len, cache._cold.values())) < 12_000
    assert all(cache.get(str(number)) == f"{common} {number}" for number in range(50))
