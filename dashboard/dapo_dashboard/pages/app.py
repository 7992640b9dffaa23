"""The dashboard's Streamlit script: the login, the navigation, and the style of all pages."""

from pathlib import Path

import streamlit as st

from dapo_dashboard import context

# This script stands among the pages, not above them: Streamlit takes a folder `pages` next to its script for pages that
# anybody may open, and runs them without this script and its login.
PAGES = Path(__file__).parent
# Streamlit leaves wide margins around a page; charts need the room, most of all on a phone. What is
# about to be replaced is not grey meanwhile: a page that refreshes itself would flicker. The rest styles the HTML of
# `escaping`.
STYLE = """<style>
.stMainBlockContainer { padding: 3.6rem clamp(0.7rem, 2.5vw, 3rem) 2rem; }
[data-stale="true"] { opacity: 1 !important; transition: none !important; }
.stMainBlockContainer > div > .stVerticalBlock { gap: 0.55rem; }
dl.dapo-figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(6.3rem, 1fr)); gap: .5rem .8rem;
  margin: 0 !important; padding: .35rem .8rem !important; border-radius: .4rem;
  border: 1px solid color-mix(in srgb, currentColor 16%, transparent); }
dl.dapo-figures dt, dl.dapo-figures dd { margin: 0; padding: 0; }
.dapo-head { display: flex; flex-wrap: wrap; align-items: baseline; gap: .3rem .6rem; margin-bottom: .5rem; }
.dapo-head h3 { font-size: 1.2rem !important; padding: 0 !important; margin: 0; }
.dapo-head small { opacity: .78; font-size: .84rem; overflow-wrap: anywhere; }
.dapo-badge { font-size: .82rem; padding: .05rem .45rem; border-radius: .3rem; --dapo-color: #8A929B;
  background: color-mix(in srgb, var(--dapo-color) 17%, transparent); border: 1px solid var(--dapo-color); }
.dapo-blue { --dapo-color: #2F8FCC; } .dapo-green { --dapo-color: #1FA187; } .dapo-red { --dapo-color: #D1495B; }
.dapo-orange { --dapo-color: #E08A00; } .dapo-violet { --dapo-color: #8A7FB8; }
.dapo-done { height: 4px; margin-top: .3rem; border-radius: 2px;
  background: color-mix(in srgb, currentColor 12%, transparent); }
.dapo-done i { display: block; height: 100%; border-radius: 2px; background: #2F8FCC; }
dl.dapo-figures > div { display: flex; flex-direction: column; justify-content: flex-end; }
.dapo-figures dt { font-size: .8rem; font-weight: 400; opacity: .72; }
.dapo-figures dd { font-size: 1.22rem; font-weight: 600; font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) {
  dl.dapo-figures { grid-template-columns: repeat(3, 1fr); gap: .4rem .6rem; }
  .st-key-filters, .st-key-toolbar { gap: .5rem .8rem; }
  .st-key-filters > .stElementContainer { flex: 1 0 calc(50% - .4rem); max-width: calc(50% - .4rem); }
}
</style>"""
# A local file: pages load nothing from other servers.
ICON = PAGES.parent / "icon.svg"


def main() -> None:
    st.set_page_config(page_title="DAPO", page_icon=str(ICON), layout="wide", initial_sidebar_state="collapsed")
    st.html(STYLE)
    if context.login_is_configured() and not st.user.is_logged_in:
        _ask_to_log_in()
        return
    page = st.navigation(
        [
            st.Page(PAGES / "page_runs.py", title="Runs", icon=":material/table_rows:", url_path="runs", default=True),
            st.Page(PAGES / "page_run.py", title="Run", icon=":material/show_chart:", url_path="run"),
            st.Page(PAGES / "page_compare.py", title="Compare", icon=":material/compare_arrows:", url_path="compare"),
            st.Page(PAGES / "page_alerts.py", title="Alerts", icon=":material/notifications:", url_path="alerts"),
            st.Page(PAGES / "page_help.py", title="Help", icon=":material/help:", url_path="help"),
        ],
        position="top",
    )
    if context.settings().demo:
        st.caption("Demo: these runs come with the platform. `dapo run job.yaml` starts your own.")
    page.run()


def _ask_to_log_in() -> None:
    st.title("DAPO")
    st.write("Log in to see your runs.")
    st.button("Log in", type="primary", icon=":material/login:", on_click=st.login)


main()
