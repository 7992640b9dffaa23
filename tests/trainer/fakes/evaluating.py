"""An evaluating process that keeps its contract without an engine: what tests of `dapo evaluate` start.

FAKE_EVALUATION is JSON: {"right": 2, "end": "words"}; each of the job's prompts gets `right` right answers. `end`:
`words` (a model that cannot be loaded), `crash`, or `hang`.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dapo_core.jobspec import load_job
from dapo_core.run.entries import Sample
from dapo_core.run.last_words import LastWords
from dapo_trainer.evaluate.worker import EvaluationProgress
from dapo_trainer.evaluate.worker_process import EvaluationFolder
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.groups.sample_log import to_parquet
from dapo_trainer.rewards.verdict import right_or_wrong

FOLDER = EvaluationFolder.of(Path(os.environ["DAPO_WORK_DIR"]))
PLAN = json.loads(os.environ.get("FAKE_EVALUATION", "{}"))
job = load_job(Path(os.environ["DAPO_JOB"]))

EvaluationProgress(FOLDER.heartbeat).phase("validate", 1, 2, "sampling and scoring")
match PLAN.get("end"):
    case "words":
        LastWords("ModelUnloadable", "The model is torn: download it again.").write()
        sys.exit(12)
    case "crash":
        print("Segmentation fault of some engine")
        sys.exit(139)
    case "hang":
        time.sleep(600)

groups = []
for one in job.spec.data.validation:
    from dapo_trainer.data.sources import data_file

    prompts = len(json.loads(f"[{','.join(data_file(one.source, '--data').read_text().splitlines())}]"))
    for index in reversed(range(prompts)):  # they come back in no order
        right = [i < PLAN.get("right", 1) + index for i in range(one.samples_per_prompt)]
        verdicts = [right_or_wrong(ok, str(int(ok))) for ok in right]
        groups.append(Evaluated(one.name, verdicts, [10] * len(right), [False] * len(right), index))
checkpoint = FOLDER.read_request()
step = None if checkpoint is None else checkpoint.step or 60
FOLDER.responses.write_bytes(to_parquet([Sample("1+1?", "Answer: 2", "2", 1.0, 1.0, 10, False)]))
FOLDER.groups.write_text(json.dumps({"step": step, "groups": [asdict(group) for group in groups]}))
LastWords("Completed", "All prompts are evaluated.").write()
