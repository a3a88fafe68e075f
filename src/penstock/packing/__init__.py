"""``penstock pack``: write a source's records to packed files."""
