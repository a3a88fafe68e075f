"""Files of tokens, read in rows of one length."""
