"""What to write instead of a text that does not match its pattern, by field; [] stands for the entries of a list."""

from typing import Final

_READABLE = "must be hf://owner/name, s3://bucket/key, file:///absolute/path or pvc://claim/path"

REMEDIES: Final[dict[str, str]] = {
    "metadata.name": "use lower-case letters, digits and dashes, a letter first",
    "spec.model.source": f"{_READABLE}; a plain path is understood only by `dapo run`",
    "spec.data.train[].source": f"{_READABLE}; a plain path is understood only by `dapo run`",
    "spec.data.validation[].source": f"{_READABLE}; a plain path is understood only by `dapo run`",
    "spec.data.validation[].name": "use letters, digits, dots, dashes and underscores",
    "spec.reward.module": "write it as package.module:function",
    "spec.checkpoints.uri": "must be s3://bucket/prefix, file:///absolute/path or pvc://claim/path; a plain path is "
    "understood only by `dapo run`",
    "spec.checkpoints.bestMetric": "write it as val-core/{validation name}/acc/mean@{k}",
    "spec.checkpoints.resumeFrom": "write a checkpoint's URI, a run id or run-id@step",
    "spec.stores.secretName": "use a Secret's name: lower-case letters, digits, dashes and dots",
    "spec.runPolicy.failureRules[].reasons[]": "write CamelCase reasons such as Evicted",
}
