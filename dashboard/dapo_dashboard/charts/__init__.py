"""Charts as ECharts options: pure, without Streamlit."""
