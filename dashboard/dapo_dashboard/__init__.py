"""The dashboard: Streamlit pages over the metadata store."""
