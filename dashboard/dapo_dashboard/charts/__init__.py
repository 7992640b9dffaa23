"""Charts as data: pure, without Streamlit."""
