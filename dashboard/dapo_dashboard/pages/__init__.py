"""The pages. Streamlit runs `app.py`, then one of `page_*.py`; the other modules are parts of them."""
