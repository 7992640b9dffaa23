"""Samples on a run's page, out of a folder and out of S3."""

import io

import builders
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import streamlit as st
from dashboard_data import Store
from dashboard_script import shown, store, texts
from servers.minio import MinioServer

from dapo_core.db import RunRow, SamplesRow, WriteBatch
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_dashboard.reads.stored_samples import read_samples, store_url
from dapo_dashboard.server_settings import DashboardSettings

__all__ = ["store"]
MINIO = "s3://dapo/{namespace}?endpoint=http://minio:9000"


def _samples(store: Store, step: int, response: str, url: str | None = None) -> None:
    table = pa.table(
        {
            "prompt": ["1+1?"], "response": [response], "ground_truth": ["2"], "reward": [1.0], "accuracy": [1.0],
            "length": [3], "truncated": [False],
        }
    )  # fmt: skip
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    key = f"r/samples/step-{step}.parquet"
    open_store(url or (store.folder / "objects").as_uri()).put_bytes(key, sink.getvalue())
    store.writer.write("r", WriteBatch(samples=[SamplesRow("r", step, 1, key, 1, len(sink.getvalue()), 1.0)]))


def test_samples_of_two_steps_stand_side_by_side(store: Store) -> None:
    store.run("r", steps=3)
    _samples(store, 0, "Answer: <b>3</b>")
    _samples(store, 10, "Answer: 2")
    test = shown("run", run="r", view="Samples")
    assert "1 samples of step 10" in texts(test)
    said = texts(test)
    assert "Step 0" in said and "Step 10" in said and "right" in said


def test_samples_that_are_gone_are_told(store: Store) -> None:
    store.run("r", steps=3)
    store.writer.write("r", WriteBatch(samples=[SamplesRow("r", 1, 1, "r/samples/gone.parquet", 1, 1, 1.0)]))
    assert "samples of this step are no longer in the object store" in texts(shown("run", run="r", view="Samples"))


def test_samples_of_a_cluster_lie_in_the_folder_of_their_namespace(
    store: Store, minio: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = minio.new_bucket()
    for name, value in minio.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DAPO_STORE_URL", minio.url(bucket, "{namespace}"))
    st.cache_resource.clear()
    store.run("r", steps=3, namespace="team-a")
    _samples(store, 10, "Answer: 2", minio.url(bucket, "team-a"))
    assert "1 samples of step 10" in texts(shown("run", run="r", view="Samples"))


def _run(uri: str | None) -> RunRow:
    spec = builders.dumped(builders.job())
    spec["spec"]["checkpoints"] = {"uri": uri} if uri else {}
    return RunRow("r", "r", namespace="team-a", spec=spec, created_at=1.0)


@pytest.mark.parametrize(
    ("uri", "server", "place"),
    [
        pytest.param(None, MINIO, "s3://dapo/team-a?endpoint=http://minio:9000", id="the namespace's folder"),
        pytest.param(None, "file:///store", "file:///store", id="one store for all"),
        pytest.param(
            "s3://dapo/team-a/big",
            MINIO,
            "s3://dapo/team-a/big?endpoint=http://minio:9000",
            id="within the namespace's folder",
        ),
        pytest.param("file:///runs", None, "file:///runs", id="only the job says"),
        pytest.param(None, None, None, id="nobody says"),
    ],
)
def test_where_samples_lie(uri: str | None, server: str | None, place: str | None) -> None:
    assert store_url(_run(uri), DashboardSettings("", store_url=server)) == place


@pytest.mark.parametrize("uri", ["s3://dapo/team-b", "s3://dapo/team-ab", "s3://dapo", "s3://own/x"])
def test_a_job_can_not_show_what_another_namespace_keeps(uri: str) -> None:
    with pytest.raises(StoreError, match="outside the folder of namespace team-a"):
        store_url(_run(uri), DashboardSettings("", store_url=MINIO))


@pytest.mark.parametrize("key", ["other/samples/x.parquet", "r/samples/../../x", "r/checkpoints/x"])
def test_a_row_of_a_run_points_to_its_own_samples(key: str) -> None:
    with pytest.raises(StoreError, match="not a valid key of samples of run r"):
        read_samples("file:///store", SamplesRow("r", 1, 1, key, 1, 1, 1.0))
