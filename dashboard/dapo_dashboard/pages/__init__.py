"""The pages. `page_*.py` are scripts that Streamlit runs; the other modules are parts of them."""
