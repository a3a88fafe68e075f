"""Reads begun by a GPU's threads through NVM Express queues (docs/contracts/nvme-queues.md)."""
