"""What identifies code and data, so that nobody meets on other data than their own."""
