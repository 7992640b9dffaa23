"""Parts of pages: thin, over the pure modules beside them."""
