"""Listeners: what is sampled while runs go on. Each implements ``contract.Listener``."""
