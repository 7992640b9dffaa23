"""docs/store-faults.md: faults that a review of the stores found, how they behave now, and the tests of that."""

from typing import Final

import operator_faults

# By finding: how the stores behave, and the tests of it as file::test.
FAULTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "B1": (
        "An upload that is answered 200 with an error is a failure, and no manifest names a file that the store does "
        "not list at its size",
        (
            "core/test_s3_requests.py::test_whether_an_upload_is_complete",
            "core/test_s3_models.py::test_200_with_an_error_stores_nothing_and_the_next_try_does",
            "trainer/test_checkpoints.py::test_no_manifest_names_a_file_that_the_store_does_not_list",
            "trainer/test_checkpoints.py::test_a_file_listed_at_another_size_is_not_committed",
        ),
    ),
    "B2": (
        "The deletion of an object that does not exist is no error, also where the server answers 404",
        (
            "core/test_s3_store.py::test_a_server_that_answers_404_to_the_deletion_of_nothing",
            "core/test_objectstore.py::test_missing_objects",
        ),
    ),
    "B3": (
        "`sweep --unknown-runs` removes only what is certainly a run's, one run at a time, by name",
        (
            "trainer/test_checkpoint_tool.py::test_runs_that_nobody_knows_are_swept_when_asked",
            "trainer/test_checkpoint_tool.py::test_only_an_unknown_run_that_is_named_is_removed",
            "trainer/test_checkpoint_tool.py::test_a_login_of_one_namespace_knows_no_unknown_runs",
        ),
    ),
    "B4": (
        "Cleaning up after a commit fails nothing, and a checkpoint that was recorded as failed is corrected",
        (
            "trainer/test_checkpoints.py::test_clean_up_that_fails_does_not_fail_the_commit",
            "trainer/test_checkpoints.py::test_a_committed_checkpoint_that_was_recorded_as_failed_is_corrected",
        ),
    ),
    "B5": (
        "An attempt writes to keys of its own, and commits and removes nothing once a later one has committed",
        (
            "trainer/test_checkpoints.py::test_an_attempt_that_wakes_up_writes_beside_its_successors_checkpoint",
            "trainer/test_checkpoints.py::test_an_attempt_that_is_replaced_while_it_uploads_commits_nothing",
            "trainer/test_checkpoints.py::test_a_checkpoint_without_the_attempt_in_its_keys_is_one_as_any_other",
        ),
    ),
    "B6": (
        "What the database has not confirmed outlives the pod in the object store",
        (
            "trainer/test_store_faults.py::test_it_is_away_while_a_pod_ends",
            "trainer/test_stored_tail.py::test_what_is_not_delivered_outlives_the_disk",
            "trainer/test_stored_tail.py::test_dapo_db_deliver",
        ),
    ),
    "B7": (
        "A thinned run that is resumed keeps what its buckets held",
        ("core/test_prune.py::test_a_thinned_run_that_is_resumed_keeps_what_its_buckets_held",),
    ),
    "B8": ("Suspended runs are not pruned", ("core/test_prune.py::test_a_suspended_run_is_not_changed",)),
    "B9": (
        "A database that was restored from an older copy reports what no spool has any more",
        ("trainer/test_sender.py::test_records_that_an_older_copy_lacks_and_the_spool_dropped_are_reported",),
    ),
    "B10": (
        "An earlier spool that cannot be read does not stop delivery",
        ("trainer/test_sender.py::test_an_earlier_spool_that_cannot_be_read_does_not_stop_this_ones_delivery",),
    ),
    "B11": (
        "Numbers whose sum overflows reject no step",
        ("core/test_metadata_store.py::test_numbers_whose_sum_overflows_do_not_reject_their_step",),
    ),
    "B12": (
        "States of checkpoints are ordered by attempt, not by the clocks of nodes",
        ("core/test_metadata_store.py::test_which_state_of_a_checkpoint_counts",),
    ),
    "B13": (
        "`db revoke` works for an owner without superuser rights, while the login is connected",
        ("core/test_database_roles.py::test_an_owner_without_superuser_rights_revokes_a_login_that_is_connected",),
    ),
    "B14": (
        "`db upgrade --roles` leaves correct policies alone, and restores others beside writers without a deadlock",
        (
            "core/test_database_roles.py::test_an_upgrade_leaves_correct_policies_alone",
            "core/test_database_roles.py::test_an_upgrade_restores_a_policy_beside_a_writer_without_a_deadlock",
        ),
    ),
    "B15": (
        "A pooler in transaction mode may stand before Postgres",
        (
            "core/test_pooler.py::test_b15_many_writers_share_two_connections",
            "core/test_pooler.py::test_b15_settings_hold_in_each_transaction_and_only_there",
            "core/test_pooler.py::test_b15_the_owners_commands",
        ),
    ),
    "B16": (
        "Points name their run by a number, are converted online, vacuumed by their size, and pruned in pieces",
        (
            "core/test_points_conversion.py::test_b16_reads_are_the_same_wherever_the_points_are",
            "core/test_points_conversion.py::test_b16_an_interrupted_conversion_is_repeated",
            "core/test_points_conversion.py::test_b16_vacuum_follows_the_large_tables",
            "core/test_prune.py::test_what_was_interrupted_is_done_by_the_next_one",
        ),
    ),
    "B17": (
        "The chart prunes the database and sweeps the object store by the clock, samples included",
        (
            "chart/test_chart_manifests.py::test_the_database_is_pruned_by_the_clock_where_that_is_wanted",
            "chart/test_chart_manifests.py::test_b17_each_namespaces_objects_are_swept_by_the_clock",
            "trainer/test_checkpoint_tool.py::test_b17_samples_are_kept_for_so_many_days",
        ),
    ),
    "B18": (
        "The system's certificates are trusted, and the client is used by its public methods",
        (
            "core/test_s3_store.py::test_the_systems_certificates_are_trusted",
            "core/test_s3_requests.py::test_requests_go_where_the_client_would_send_them",
        ),
    ),
    "B19": (
        "A slow line takes longer and does not fail: the time limit is for each block",
        ("core/test_s3_requests.py::test_a_body_is_signed_by_its_hash_and_sent_in_blocks",),
    ),
    "B20": (
        "Sweeping finds runs by the folders of the store, and reads all pages of incomplete uploads",
        (
            "trainer/test_checkpoint_tool.py::test_b20_sweeping_lists_no_run_to_find_runs",
            "core/test_s3_requests.py::test_incomplete_uploads_are_read_page_by_page",
        ),
    ),
    "B21": (
        "`dapo checkpoints keep` pins a checkpoint",
        ("trainer/test_checkpoint_tool.py::test_a_checkpoint_that_is_kept_survives_retention_until_it_is_released",),
    ),
}
_INTRODUCTION: Final = """# Faults of the stores

Each fault that a review of the object stores and of the metadata store found, how they behave now, and the tests of
that. [stores.md](stores.md) says what happens in an outage, and which tests passed on which server.

<!-- generated from scripts/generate/store_faults.py by `make generate` -->

"""


def page() -> str:
    """docs/store-faults.md. Raises ValueError for a test that does not exist."""
    return _INTRODUCTION + operator_faults.table(FAULTS, "scripts/generate/store_faults.py")
