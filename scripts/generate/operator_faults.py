"""docs/operator-faults.md: faults that a review of the operator found, how it behaves now, and the tests of that."""

from collections.abc import Mapping
from typing import Final

from sections import check_test

# By finding: how the operator behaves, and the tests of it as file::test.
FAULTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "B1": (
        "An attempt's Kueue Workload is deleted with it, so that quota is freed and no finalizer keeps pods",
        ("operator/test_reservations.py::test_b1_its_end_deletes_the_workload_whose_finalizers_keep_the_pods",),
    ),
    "B2": (
        "PodGroups of ended, suspended and finished attempts are deleted",
        (
            "operator/test_reservations.py::test_b2_what_an_attempt_reserved_is_released_when_it_ends",
            "operator/test_reservations.py::test_b2_a_crash_releases_before_the_next_attempt_asks",
        ),
    ),
    "B3": (
        "A job whose status cannot be read is frozen, and keeps its pods",
        ("operator/test_reconciler.py::test_a_job_whose_status_cannot_be_read_is_frozen",),
    ),
    "B4": (
        "Each condition has the generation for which it was determined: `kubectl wait` works after an edit",
        (
            "operator/test_planner_life.py::test_every_condition_follows_the_generation_of_the_spec",
            "e2e/test_4_faults.py::test_kubectl_waits_after_an_edit",
        ),
    ),
    "B5": (
        "A pod that its node rejects is not counted; a failed init container is named",
        (
            "operator/test_observed.py::test_a_pod_that_its_node_rejected",
            "operator/test_observed.py::test_a_failed_init_container_is_named",
        ),
    ),
    "B6": (
        "Of the metadata store only what is new is read",
        ("operator/test_store_reading.py::test_b06_only_what_is_new_is_read",),
    ),
    "B7": (
        "Guards judge the whole curve",
        ("operator/test_store_reading.py::test_b07_a_guard_of_more_steps_than_a_page_shows_holds",),
    ),
    "B8": (
        "Finalizers of other controllers stay",
        ("operator/test_executor.py::test_the_finalizer_is_added_to_those_of_others",),
    ),
    "B9": (
        "Pods that delay the next attempt are reported and asked for with backoff",
        ("operator/test_planner_faults.py::test_a_pod_of_somebody_else_with_the_labels_of_the_job_is_reported",),
    ),
    "B10": (
        "A deletion that is refused is reported and retried with backoff",
        ("operator/test_reconciler.py::test_a_refused_deletion_is_reported_and_retried_with_backoff",),
    ),
    "B11": (
        "The next attempt starts within a minute of the loss of a node",
        ("operator/test_nodes.py::test_b11_the_next_attempt_starts_within_a_minute_of_the_loss",),
    ),
    "B12": (
        "An upgrade of the platform leaves attempts alone",
        (
            "operator/test_upgrades.py::test_b12_attempts_that_start_or_wait_are_left_alone",
            "e2e/test_5_upgrade_while_starting.py::test_b12_an_upgrade_leaves_a_job_that_starts_alone",
        ),
    ),
    "B13": (
        "Support objects are restored after an upgrade, too",
        ("operator/test_upgrades.py::test_b13_a_network_policy_that_was_deleted_comes_back",),
    ),
    "B14": (
        "A job of another controller (`managedBy`) is left alone",
        ("operator/test_reconciler.py::test_b14_a_job_of_another_controller_is_left_alone",),
    ),
    "B15": (
        "A job counts as admitted when Kueue says so",
        ("operator/test_reservations.py::test_b15_admitted_is_said_when_kueue_says_so",),
    ),
    "B16": (
        "An edit that a running attempt does not see is reported, and more steps are run",
        (
            "operator/test_upgrades.py::test_b16_an_edit_that_the_driver_has_not_read_is_said_to_apply_later",
            "operator/test_planner_life.py::test_more_steps_that_were_asked_for_while_training_are_run",
        ),
    ),
    "B17": (
        "The number of FSDP ranks may change between attempts: checkpoints are resharded",
        ("engine/test_resharding.py::test_weights_optimizer_and_schedule_are_the_same_on_1_2_4_and_2_ranks",),
    ),
    "B18": (
        "Progress clears restarts, uncounted ones are limited, and a raised limit continues a failed run",
        (
            "operator/test_limits.py::test_b18_faults_that_are_rare_do_not_add_up",
            "operator/test_limits.py::test_b18_a_run_that_cannot_start_gives_up",
            "operator/test_limits.py::test_b18_a_failed_job_continues_when_its_limit_is_raised",
        ),
    ),
    "B19": (
        "Argo CD keeps the passwords, and brings the stores first",
        (
            "chart/test_chart_manifests.py::test_b19_renderings_with_a_seed_have_the_same_passwords",
            "chart/test_chart_manifests.py::test_b19_argo_brings_the_stores_first_then_the_tables_then_the_rest",
        ),
    ),
    "B20": (
        "`activeDeadlineSeconds` does not pass while a job is suspended or queued",
        (
            "operator/test_limits.py::test_b20_a_suspended_run_does_not_use_its_time_up",
            "operator/test_limits.py::test_b20_a_queue_does_not_use_the_time_up",
        ),
    ),
    "B21": (
        "`failureRules: Ignore` decides whose failure counts; it keeps no run alive ([limitations.md](limitations.md))",
        ("core/test_failure_policy.py::test_rules",),
    ),
    "B22": (
        "A short outage of the metadata store costs no status write",
        ("operator/test_shown.py::test_b22_a_short_outage_of_the_store_costs_no_write",),
    ),
    "B23": (
        "New numbers in the scheduler's message wait for other changes",
        ("operator/test_shown.py::test_b23_another_number_in_the_schedulers_sentence_waits",),
    ),
    "B24": (
        "Watches that end at once are opened less and less often",
        ("operator/test_informer.py::test_b24_watches_that_end_at_once_are_opened_less_and_less_often",),
    ),
    "B25": (
        "The API server may be away for days",
        ("operator/test_informer.py::test_failures_may_go_on_for_hours",),
    ),
    "B26": (
        "Uninstalling the chart takes the operator's finalizers off",
        (
            "operator/test_uninstall.py::test_b26_no_job_keeps_the_finalizer_and_other_finalizers_stay",
            "chart/test_chart_manifests.py::test_b26_jobs_are_released_before_the_operator_is_removed",
        ),
    ),
    "B27": (
        "Budgets exist only while they protect something; Service and NetworkPolicy go with the end of the run",
        (
            "operator/test_nodes.py::test_a_budget_exists_only_while_it_protects_something",
            "operator/test_planner_life.py::test_b27_what_connected_the_pods_of_a_finished_run_is_deleted",
        ),
    ),
    "B28": (
        "DAPOJobs are listed in pages; `benchmarks/operator` measures memory",
        ("operator/test_reconciler.py::test_what_a_job_costs_until_it_trains_and_while_it_does",),
    ),
    "B29": (
        "What was reserved for deleted jobs is forgotten",
        ("operator/test_children.py::test_b29_reservations_of_deleted_jobs_are_forgotten",),
    ),
    "B30": (
        "`ttlSecondsAfterFinished` applies to jobs that never started",
        ("operator/test_limits.py::test_b30_a_job_that_never_started_is_deleted_after_its_time_to_live",),
    ),
    "B31": (
        "Logs of ended attempts are kept in the object store, and `dapo logs` prints them",
        (
            "trainer/test_recorded_output.py::test_b31_the_log_of_a_pod_that_ends",
            "core/test_logs.py::test_b31_a_log_is_printed",
            "operator/test_pod_logs.py::test_b31_the_log_of_a_pod_that_exists",
        ),
    ),
    "B32": (
        "A namespace that leaves `jobNamespaces` loses its logins",
        ("chart/test_chart_accounts.py::test_a14_a_namespace_that_leaves_and_a_leaked_password_open_nothing",),
    ),
    "B33": (
        "2,000 pods of one tenant delay another's first pod by two seconds at most",
        ("operator/test_fair_places.py::test_b33_another_tenants_first_pod_is_delayed_by_two_seconds_at_most",),
    ),
    "B34": (
        "Addresses of both families of IP are used",
        (
            "core/test_addresses.py::test_b34_a_name_has_an_address",
            "core/test_addresses.py::test_b34_an_address_with_its_port",
        ),
    ),
    "B35": (
        "A lease says since when it is held; conditions are False before they are True",
        (
            "operator/test_leadership.py::test_b35_a_lease_tells_since_when_it_is_held",
            "operator/test_planner_life.py::test_b35_what_has_not_happened_is_false_from_the_start",
        ),
    ),
    "B36": (
        "A worker's exit code 0 does not complete a run",
        ("core/test_failure_policy.py::test_without_rules",),
    ),
    "B37": (
        "A Ray token that was deleted is created again",
        ("operator/test_planner_life.py::test_b37_a_token_that_somebody_removed_is_made_while_the_pods_wait_for_it",),
    ),
}
# By flaw of the design: what is so now; the tests of it, and none where the design stays as it is, with the reason.
DESIGN: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "D1": (
        "A gang is packed into the narrowest domain that has room",
        ("operator/test_builders.py::test_a_gang_is_packed_and_never_spread",),
    ),
    "D2": (
        "Each role's work folder may have a size or a volume of its own (`scratch`)",
        ("operator/test_builders.py::test_where_a_pod_works",),
    ),
    "D3": (
        "Models are kept on nodes, on a claim or in an image (`topology.modelCache`)",
        (
            "operator/test_builders.py::test_where_models_are_kept",
            "operator/test_builders.py::test_an_image_is_the_model_in_every_pod",
        ),
    ),
    "D4": (
        "A lost rollout is replaced within the attempt; a lost head or trainer ends it "
        "([limitations.md](limitations.md))",
        ("operator/test_rollouts.py::test_a_lost_rollout_is_replaced_and_the_attempt_goes_on",),
    ),
    "D5": (
        "The installation has pod templates for all roles and for each; so has a job",
        ("operator/test_builders.py::test_templates_are_merged_from_the_installation_to_the_role",),
    ),
    "D6": (
        "Nodes are watched, and those with device faults avoided",
        (
            "operator/test_nodes.py::test_the_second_device_fault_of_a_day_counts",
            "operator/test_nodes.py::test_an_unfit_node_is_avoided_at_once",
        ),
    ),
    "D7": (
        "Drains are served: a checkpoint, then other nodes",
        ("operator/test_nodes.py::test_a_cordon_saves_a_checkpoint_and_moves_the_job",),
    ),
    "D8": (
        "A run keeps the images and defaults of its first attempt until its spec is edited; scaling is no edit",
        (
            "operator/test_upgrades.py::test_d8_later_attempts_run_the_digest_of_the_first",
            "operator/test_upgrades.py::test_d8_a_newer_operator_reads_the_defaults_of_the_run_in_its_job_file",
            "operator/test_scaled_runs.py::test_d8_a_job_that_was_scaled_keeps_its_images_and_defaults",
        ),
    ),
    "D9": (
        "`spec.runId` lets a job that is created again continue its run",
        ("operator/test_named_run.py::test_a_job_that_is_created_again_continues_its_run",),
    ),
    "D10": (
        "`kubectl scale` takes effect at once, and does not resume a job that a guard suspended",
        (
            "operator/test_rollouts.py::test_scaling_takes_effect_at_once",
            "operator/test_planner_policy.py::test_d10_only_a_person_resumes_a_job_that_a_guard_suspended",
        ),
    ),
    "D11": (
        "One version, whose fields are only added, and whose statuses of earlier releases are read. A second version "
        "would be the same fields under another name, which needs no conversion, so nothing is lost by waiting for 1.0",
        ("operator/test_upgrades.py::test_statuses_of_earlier_versions_are_read",),
    ),
    "D12": (
        "By default the operator has rights in `jobNamespaces` only; each permission is needed, and ConfigMaps are not "
        "patched. `postgres.operatorKey` gives it a database login that is not the owner's",
        (
            "chart/test_chart_manifests.py::test_d12_by_default_the_operator_has_no_rights_elsewhere",
            "chart/test_chart_rbac.py::test_every_right_is_needed_and_none_is_missing",
        ),
    ),
    "D13": (
        "S3 keys come from files and roles, too. In part: the reward code of a job shares its pods' credentials, which "
        "reach its namespace's data only, and the chart's own stores use no TLS ([security.md](security.md))",
        ("core/test_s3_store.py::test_keys_in_a_file_may_rotate_while_the_store_is_open",),
    ),
    "D14": (
        "The security level is chosen for each namespace, and templates may ask for what it admits. The job's "
        "NetworkPolicy has no switch: policies add up, so one of the namespace's own lets in others, like Prometheus",
        (
            "chart/test_chart_manifests.py::test_the_pod_security_level_of_a_namespace",
            "operator/test_builders.py::test_d14_a_template_asks_for_what_a_fabric_needs",
        ),
    ),
    "D15": (
        "Claims of DRA, such as a ComputeDomain, are added by templates. GPUs themselves are one extended resource for "
        "all roles ([limitations.md](limitations.md))",
        ("operator/test_builders.py::test_d15_a_template_adds_resource_claims",),
    ),
    "D16": (
        "Three roles, as before: reward models, judges and sandboxes are services of their own, which rewards call "
        "([rewards.md](rewards.md)). They serve several jobs and outlive attempts, so no attempt should own them",
        (),
    ),
    "D17": (
        "Alerts on jobs that fail, that wait for an hour, and on many attempts that end alike. ProgressKnown stays: "
        "`kubectl wait` and people look at the job; no label names a namespace: their number is not bounded",
        (
            "operator/test_shown.py::test_d17_jobs_that_need_attention_are_counted",
            "chart/test_chart_manifests.py::test_alerts_name_metrics_that_the_operator_has",
        ),
    ),
    "D18": (
        "Gang `none` frees a gang that got only some of its pods, at different times from others. Scheduling gates "
        "until a dry check would reserve nothing: two jobs would pass the check at once. Gang schedulers do reserve",
        (
            "operator/test_planner_faults.py::test_13_a_partial_gang_is_freed",
            "operator/test_planner_faults.py::test_13_two_gangs_that_collided_come_back_apart",
        ),
    ),
    "D19": (
        "x86-64 only, and images are built by each installation: nothing has been tested on arm64 "
        "([limitations.md](limitations.md))",
        (),
    ),
}
_INTRODUCTION: Final = """# Faults of the operator

Each fault that a review of the operator found, how the operator behaves now, and the tests of that. In addition, in
the simulation (`tests/operator/test_simulation.py`) people, nodes, the API server and operators do whatever they
can. It checks at each second that no frozen job loses a pod, that one job's error stops no other, and that only one
attempt of a job has pods; `make simulate` does so for 30 days and 200 jobs.

<!-- generated from scripts/generate/operator_faults.py by `make generate` -->

"""


_OF_THE_DESIGN: Final = """
## Flaws of the design

What the same review said about the design. A row without tests has the reason why the design stays as it is.

"""


def page() -> str:
    """docs/operator-faults.md. Raises ValueError for a test that does not exist."""
    tables = [table(each, "scripts/generate/operator_faults.py") for each in (FAULTS, DESIGN)]
    return _INTRODUCTION + _OF_THE_DESIGN.join(tables)


def table(faults: Mapping[str, tuple[str, tuple[str, ...]]], source: str) -> str:
    """Findings with what is so now and the tests of it. Raises ValueError, which names `source`, for a test that does
    not exist."""
    rows = (f"| {number} | {text} | {_shown(tests, source)} |" for number, (text, tests) in faults.items())
    return "| | behavior | tests |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _shown(tests: tuple[str, ...], source: str) -> str:
    for test in tests:
        check_test(test, source)
    return "<br>".join(f"`{test}`" for test in tests)
