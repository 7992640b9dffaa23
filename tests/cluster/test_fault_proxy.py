"""The faults that the operator's tests are built on are what they say."""

import time
from collections.abc import Iterator

import pytest
import urllib3
from patience import patient
from servers.fault_proxy import Fault, FaultProxy, every
from servers.kubernetes import Cluster
from servers.kubernetes_api import KubernetesApi, Refused

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/{}/configmaps"


@pytest.fixture(scope="module")
def between(cluster: Cluster) -> Iterator[tuple[FaultProxy, KubernetesApi]]:
    with FaultProxy(cluster) as proxy:
        yield proxy, KubernetesApi(proxy.url, cluster.credentials.admin_token, cluster.credentials.ca)


@pytest.fixture
def proxy(between: tuple[FaultProxy, KubernetesApi]) -> Iterator[FaultProxy]:
    yield between[0]
    between[0].heal()


@pytest.fixture
def api(between: tuple[FaultProxy, KubernetesApi]) -> KubernetesApi:
    return between[1]


def test_without_a_fault_everything_passes(proxy: FaultProxy, api: KubernetesApi, namespace: str) -> None:
    began = time.time()
    api.create(MAPS.format(namespace), {"metadata": {"name": "a"}, "data": {"key": "ü"}})
    assert api.get(MAPS.format(namespace) + "/a")["data"] == {"key": "ü"}
    with pytest.raises(Refused, match="404"):
        api.get(MAPS.format(namespace) + "/b")
    assert [(seen.method, seen.code) for seen in proxy.writes_since(began)] == [("POST", 201)]


def test_an_answer_in_the_servers_place(proxy: FaultProxy, api: KubernetesApi, namespace: str) -> None:
    proxy.rule = every(Fault(code=500), method="POST", times=1)
    with pytest.raises(Refused, match="500 InternalError"):
        api.create(MAPS.format(namespace), {"metadata": {"name": "a"}})
    api.create(MAPS.format(namespace), {"metadata": {"name": "a"}})


def test_a_write_that_arrives_and_whose_answer_is_lost(proxy: FaultProxy, api: KubernetesApi, namespace: str) -> None:
    proxy.rule = every(Fault(lost=True, after=True), method="POST", times=1)
    with pytest.raises(urllib3.exceptions.HTTPError):
        api.create(MAPS.format(namespace), {"metadata": {"name": "a"}})
    assert api.get(MAPS.format(namespace) + "/a")


def test_a_partition_holds_requests_and_breaks_them_when_it_heals(proxy: FaultProxy, cluster: Cluster) -> None:
    proxy.partition()
    pool = urllib3.PoolManager(ca_certs=str(cluster.credentials.ca))
    headers = {"Authorization": f"Bearer {cluster.credentials.admin_token}"}
    with pool, pytest.raises(urllib3.exceptions.ReadTimeoutError):
        pool.request("GET", proxy.url + PODS, headers=headers, timeout=0.3, retries=False)
    proxy.heal()
    with pool:
        assert pool.request("GET", proxy.url + PODS, headers=headers, timeout=patient(30)).status == 200


def test_a_watch_is_silent_and_then_told_410(
    proxy: FaultProxy, api: KubernetesApi, cluster: Cluster, namespace: str
) -> None:
    events = api.watch(MAPS.format(namespace), 30, resourceVersion="0")
    assert next(events)["object"]["metadata"]["name"] == "kube-root-ca.crt"
    proxy.silence_watches()
    cluster.api.create(MAPS.format(namespace), {"metadata": {"name": "unheard"}})
    time.sleep(0.3)
    proxy.expire_watches()
    (last,) = events
    assert (last["type"], last["object"]["code"]) == ("ERROR", 410)


def test_a_watch_tells_twice_and_backwards(
    proxy: FaultProxy, api: KubernetesApi, cluster: Cluster, namespace: str
) -> None:
    proxy.stutters = True
    events = api.watch(MAPS.format(namespace), 30, resourceVersion="0")
    assert [next(events)["object"]["metadata"]["name"] for _ in range(2)] == ["kube-root-ca.crt"] * 2
    for name in ("first", "second"):
        cluster.api.create(MAPS.format(namespace), {"metadata": {"name": name}})
    told = [next(events)["object"]["metadata"]["name"] for _ in range(4)]
    proxy.cut()
    assert sorted(told) == ["first", "first", "second", "second"]
