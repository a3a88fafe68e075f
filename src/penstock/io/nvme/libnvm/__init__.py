"""Disks under BaM's kernel module, which Penstock drives itself: docs/contracts/nvme-queues.md."""
