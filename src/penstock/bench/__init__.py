"""What users measure on their own machines: ``penstock bench``."""
