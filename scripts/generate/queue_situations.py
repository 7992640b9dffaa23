"""The section of docs/queues.md with the tests of each situation of a queue, for each gang scheduler."""

from typing import Final

from sections import check_test, with_section

KUEUE: Final = "queues/test_kueue.py"
MULTIKUEUE: Final = "queues/test_multikueue.py"
VOLCANO: Final = "queues/test_volcano.py"
MODEL: Final = "operator/test_reservations.py"
BUILDER: Final = "operator/test_gangs.py"
BEGIN: Final = "<!-- generated from scripts/generate/queue_situations.py by `make generate` -->"
END: Final = "<!-- end of the generated section -->"
_HEAD: Final = "| situation | Kueue | Volcano | coscheduling, KAI, Kubernetes |\n|---|---|---|---|"
_RELEASED: Final = f"{MODEL}::test_b2_what_an_attempt_reserved_is_released_when_it_ends"
_CRASHED: Final = f"{MODEL}::test_b2_a_crash_releases_before_the_next_attempt_asks"
_AWAY: Final = f"{MODEL}::test_reservations_of_attempts_that_ended_while_the_operator_was_away_are_released"

# By situation: its tests with Kueue, with Volcano, and with the others, as file::test; None where it cannot arise.
SITUATIONS: Final[dict[str, tuple[str | None, str | None, str | None]]] = {
    "jobs wait for each other": (
        f"{KUEUE}::test_borrowed_preempted_queued_again_and_resumed",
        f"{VOLCANO}::test_the_room_of_whoever_is_suspended_is_another_jobs",
        None,
    ),
    "a crash": (
        f"{KUEUE}::test_a_crash_gives_the_quota_to_whoever_waits",
        f"{VOLCANO}::test_b2_a_crash_does_not_starve_the_job_by_its_own_group",
        _CRASHED,
    ),
    "preempted, and continued": (f"{KUEUE}::test_borrowed_preempted_queued_again_and_resumed", _RELEASED, _RELEASED),
    "preempted, and resumed from its checkpoint": (f"{KUEUE}::test_a_preempted_job_goes_on_where_it_was", None, None),
    "suspended while training": (
        f"{KUEUE}::test_suspended_while_queued_and_while_training",
        f"{VOLCANO}::test_the_room_of_whoever_is_suspended_is_another_jobs",
        _RELEASED,
    ),
    "suspended while queued": (
        f"{KUEUE}::test_suspended_while_queued_and_while_training",
        f"{VOLCANO}::test_suspended_and_deleted_while_queued",
        _RELEASED,
    ),
    "deleted while queued": (
        f"{KUEUE}::test_deleted_and_suspended_while_queued",
        f"{VOLCANO}::test_suspended_and_deleted_while_queued",
        None,
    ),
    "the reservation is deleted": (
        f"{KUEUE}::test_a_deleted_workload",
        f"{VOLCANO}::test_a_deleted_group_is_made_again",
        f"{MODEL}::test_a_deleted_pod_group_is_asked_for_again",
    ),
    "it is deleted, and kept by a finalizer": (
        f"{MODEL}::test_no_attempt_waits_for_a_workload_that_waits_for_its_pods",
        None,
        None,
    ),
    "it is deactivated": (f"{KUEUE}::test_a_deactivated_workload", None, None),
    "quota is lowered, a queue is drained": (
        f"{KUEUE}::test_quota_that_is_lowered_and_a_queue_that_is_drained",
        None,
        None,
    ),
    "pods are not ready in time": (
        f"{KUEUE}::test_kueue_waits_for_pods_that_are_ready",
        None,
        None,
    ),
    "the scheduler's controller is away": (
        f"{KUEUE}::test_kueue_is_away",
        f"{VOLCANO}::test_volcano_is_away",
        None,
    ),
    "the operator is away": (
        f"{KUEUE}::test_the_operator_is_away",
        f"{VOLCANO}::test_the_operator_is_away",
        _AWAY,
    ),
    "it is away while a job queues": (f"{KUEUE}::test_the_operator_is_away_while_a_job_queues", None, _AWAY),
    "nodes of the flavor": (f"{KUEUE}::test_pods_run_on_the_nodes_of_their_flavor", None, None),
    "a part of the rollouts": (
        f"{KUEUE}::test_a_part_of_the_rollouts_is_admitted",
        f"{BUILDER}::test_rollouts_that_may_join_later_are_not_reserved",
        f"{BUILDER}::test_rollouts_that_may_join_later_are_not_reserved",
    ),
    "a gang in one rack": (
        f"{KUEUE}::test_a_gang_stays_in_one_rack",
        f"{BUILDER}::test_a_gang_in_one_domain",
        f"{BUILDER}::test_a_gang_in_one_domain",
    ),
    "another controller's job": (
        "operator/test_reconciler.py::test_b14_a_job_of_another_controller_is_left_alone",
        None,
        None,
    ),
    "MultiKueue: run in another cluster": (
        f"{MULTIKUEUE}::test_a_job_of_multikueue_runs_in_the_other_cluster",
        None,
        None,
    ),
    "MultiKueue: suspended there, or evicted": (
        f"{MULTIKUEUE}::test_a_job_of_multikueue_that_is_suspended_or_loses_its_quota",
        None,
        None,
    ),
}


def page(old: str) -> str:
    """docs/queues.md. Raises ValueError for a test that does not exist, and when the page has lost its marker lines."""
    rows = (f"| {name} | {' | '.join(map(_shown, tests))} |" for name, tests in SITUATIONS.items())
    return with_section(old, BEGIN, END, "\n".join([_HEAD, *rows, ""]))


def _shown(test: str | None) -> str:
    """The test, in bold where it ran on the real controllers."""
    if test is None:
        return ""
    check_test(test, "scripts/generate/queue_situations.py")
    path, _, name = test.partition("::")
    return f"**`{name}`**" if path.startswith("queues/") else f"`{name}`"
