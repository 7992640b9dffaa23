"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of the runs. Default: DAPO_HOME, else ./runs.", show_default=False),
]
MetadataOption = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        help="URL of the metadata store. Default: DAPO_METADATA_URL (ignored with --home), else dapo.db in the folder "
        "of the runs.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", help="URL of the object store. Default: the run's own, else DAPO_STORE_URL.", show_default=False
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the job on the cluster. Default: that of the kubeconfig.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
