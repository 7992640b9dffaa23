"""What one tenant's credentials may do in the object store, by the policies that the chart's accounts get."""

from fnmatch import fnmatchcase

import pytest

from dapo_operator.accounts import policy


def may_list(namespace: str, prefix: str) -> bool:
    """Whether the policy of the namespace's user allows a listing with this prefix."""
    listing = next(each for each in policy("dapo", namespace, write=True)["Statement"] if "Condition" in each)
    assert listing["Action"] == ["s3:ListBucket"]
    return any(fnmatchcase(prefix, allowed) for allowed in listing["Condition"]["StringLike"]["s3:prefix"])


@pytest.mark.parametrize("prefix", ["", "team", "team-a/", "team2/", "tea", "t"])
def test_a15_no_listing_reaches_a_namespace_of_a_longer_name(prefix: str) -> None:
    assert not may_list("team", prefix)


@pytest.mark.parametrize("prefix", ["team/", "team/run/", "team/run/checkpoints/step-1"])
def test_a15_ones_own_folder_is_listed(prefix: str) -> None:
    assert may_list("team", prefix)
