"""Reads begun by the threads of a GPU, through queues as NVM Express has them (docs/contracts/nvme-queues.md)."""
