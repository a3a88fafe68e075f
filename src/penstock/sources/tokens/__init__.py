"""Files of tokens, read in windows of one length."""

from penstock.sources.tokens.source import TokenSource

__all__ = ["TokenSource"]
