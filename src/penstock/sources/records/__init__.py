"""Where each sample's bytes lie, in files of many kinds."""
