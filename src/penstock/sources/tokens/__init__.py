"""Files of tokens, read in windows of one length."""
