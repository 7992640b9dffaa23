"""Patterns of the texts in a job, each with what to write instead of a text that does not match it."""

from typing import Final, NamedTuple

from dapo_core import naming
from dapo_core.naming import NAME_PATTERN


class Pattern(NamedTuple):
    """`remedy` completes a sentence about the field; the API server answers with it too, instead of the regex."""

    regex: str
    remedy: str


_OBJECT = r"s3://[^/\s]+.*|file:///.+|pvc://[^/\s]+.*"
_PLAIN_PATHS = "plain paths work only with `dapo run` and `dapo plan`"

URI: Final = Pattern(
    rf"^(hf://[^/\s]+/[^/\s]+.*|{_OBJECT})$",
    f"must be hf://owner/name, s3://bucket/key, file:///absolute/path or pvc://claim/path; {_PLAIN_PATHS}",
)
WRITABLE_URI: Final = Pattern(
    rf"^({_OBJECT})$", f"must be s3://bucket/prefix, file:///absolute/path or pvc://claim/path; {_PLAIN_PATHS}"
)
SHORT_NAME: Final = Pattern(
    r"^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$", "use letters, digits, dots, dashes and underscores"
)
REWARD_MODULE: Final = Pattern(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", "write it as package.module:function")
REWARD_FILE: Final = Pattern(
    r"^/(.*/)?[^/]+\.py:[A-Za-z_]\w*$",
    "write it as /folder/file.py:function; relative paths work only with `dapo run` and `dapo plan`",
)
BEST_METRIC: Final = Pattern(
    r"^val-core/[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?/[A-Za-z0-9_]+/(mean|best|maj)@[1-9][0-9]*$",
    "write it as val-core/{validation name}/acc/mean@{k}",
)
RESUME_FROM: Final = Pattern(
    r"^((s3://|pvc://)[^/\s]+.*|file:///.+|[a-z0-9]([-a-z0-9]*[a-z0-9])?(@[0-9]+)?)$",
    "write a checkpoint's URI, a run ID or run-id@step",
)
SECRET_NAME: Final = Pattern(
    r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", "use the name of a Secret: lower-case letters, digits, dashes and dots"
)
OBJECT_NAME: Final = Pattern(
    r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$", "use lower-case letters, digits, dashes and dots"
)
HOST_PATH: Final = Pattern(r"^/[^\s]*$", "write the absolute path of a folder on the node")
IMAGE: Final = Pattern(
    r"^[A-Za-z0-9][-.A-Za-z0-9]*(:[0-9]+)?(/[a-z0-9][-._a-z0-9]*)*(:\w[-.\w]*)?(@sha256:[0-9a-f]{64})?$",
    "write it as registry/name:tag or registry/name@sha256:DIGEST",
)
REASON: Final = Pattern(r"^[A-Za-z]+$", "write CamelCase reasons such as Evicted")
NAMESPACE: Final = Pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "use lower-case letters, digits and dashes")
RUN_ID: Final = Pattern(
    rf"^{naming.RUN_ID.pattern}$", "write a run ID as the platform makes them, such as first-20260131-0412-x7k2"
)
JOB_NAME: Final = Pattern(NAME_PATTERN, "use lower-case letters, digits and dashes, starting with a letter")

REMEDIES: Final[dict[str, str]] = dict(
    [
        URI,
        WRITABLE_URI,
        SHORT_NAME,
        REWARD_MODULE,
        REWARD_FILE,
        BEST_METRIC,
        RESUME_FROM,
        RUN_ID,
        SECRET_NAME,
        OBJECT_NAME,
        HOST_PATH,
        IMAGE,
        REASON,
        NAMESPACE,
        JOB_NAME,
    ]
)
