"""Live logs for `dapo logs`: from the pods of a job that still exist, with the login of the user's kubeconfig."""

import asyncio

from dapo_core.cli.log_reading import ClusterAnswer, LogPrinter, LogRequest
from dapo_core.naming import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB, LABEL_ROLE, LABEL_RUN, RUN_ID
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.jobs.observed import CONTAINER
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import NoClusterError, connect
from dapo_operator.kube.objects import PODS, ApiError, NotFoundError, Object


def print_log(request: LogRequest, printer: LogPrinter) -> ClusterAnswer:
    """Print the log of the pod that `request` names, if it exists; raises nothing of the cluster's."""
    try:
        return asyncio.run(_print(request, printer))
    except (ApiError, NoClusterError) as error:
        return ClusterAnswer(False, why=str(error))


async def _print(request: LogRequest, printer: LogPrinter) -> ClusterAnswer:
    connection = await connect()
    kube = KubeClient(connection)
    try:
        return await print_pod_log(kube, request, request.namespace or connection.namespace or "default", printer)
    finally:
        await kube.close()


async def print_pod_log(kube: KubeClient, request: LogRequest, namespace: str, printer: LogPrinter) -> ClusterAnswer:
    """Print the log of the pod that `request` names. Raises ApiError."""
    is_run = RUN_ID.fullmatch(request.job) is not None
    label = LABEL_RUN if is_run else LABEL_JOB
    pods, _ = await kube.list(PODS, namespace, f"{label}={request.job}", metadata_only=True)
    pod = _wanted(pods, request)
    if pod is None:
        run_id = request.job if is_run else await _run_id(kube, namespace, request.job)
        return ClusterAnswer(False, run_id, f"Namespace {namespace} has no such pod of {request.job}.")
    name = pod["metadata"]["name"]
    begun, why = False, ""
    try:
        async for block in kube.log(namespace, name, CONTAINER, request.follow, request.tail):
            begun = True
            printer.print([block])
    except ApiError as error:
        if not begun:
            return ClusterAnswer(False, pod["metadata"]["labels"].get(LABEL_RUN), str(error))
        why = str(error)
    printer.end()
    return ClusterAnswer(True, why=why)


def _wanted(pods: list[Object], request: LogRequest) -> Object | None:
    """The pod of the attempt that is asked for, else of the newest one. A trainer may have been created for an earlier
    attempt, and have stayed."""
    labeled = [(pod, pod["metadata"].get("labels") or {}) for pod in pods]
    numbered = [(int(number), pod) for pod, labels in labeled if (number := labels.get(LABEL_ATTEMPT, "")).isdecimal()]
    attempt = request.attempt or max((number for number, _ in numbered), default=0)
    wanted = {LABEL_ROLE: request.role, LABEL_INDEX: str(request.index)}
    found = [(number, pod) for number, pod in numbered if wanted.items() <= pod["metadata"]["labels"].items()]
    possible = [each for each in found if each[0] == attempt or (request.role == "trainer" and each[0] < attempt)]
    return max(possible, key=lambda each: each[0])[1] if possible else None


async def _run_id(kube: KubeClient, namespace: str, job: str) -> str | None:
    try:
        found = await kube.get(JOBS, namespace, job)
    except NotFoundError:
        return None
    run_id: str | None = (found.get("status") or {}).get("runId")
    return run_id
