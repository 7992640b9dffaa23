"""The job as it was given, and what it was composed to, without secrets."""

from collections.abc import Mapping
from typing import Any

import streamlit as st
import yaml

from dapo_core.db import RunRow
from dapo_dashboard.plain import shown
from dapo_dashboard.reads.redact import without_secrets

MAX_CHARACTERS = 200_000


def show(run: RunRow) -> None:
    """Both side by side; values of environment variables and whatever looks like a secret are hidden."""
    st.caption("Values of environment variables, passwords and tokens are hidden.")
    given, composed = st.columns(2)
    with given:
        _document("The job", run.spec, f"{run.run_id}.yaml")
    with composed:
        if run.config is None:
            st.markdown("**Effective configuration**")
            st.info("It is composed when the first attempt starts.", icon=":material/hourglass_top:")
        else:
            _document("Effective configuration", run.config, f"{run.run_id}-effective.yaml")


def _document(title: str, content: Mapping[str, Any], file_name: str) -> None:
    text = shown(yaml.safe_dump(without_secrets(content), sort_keys=False, allow_unicode=True), MAX_CHARACTERS)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{title}**")
        st.download_button(
            "YAML", text, file_name, "application/yaml", key=f"download-{title}", icon=":material/download:"
        )
    st.code(text, language="yaml", height=620)
