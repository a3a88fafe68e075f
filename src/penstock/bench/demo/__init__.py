"""The demo: small models trained side by side, with a DataLoader each and then all on one feed."""
