"""Tilekiln: receipts in, attention kernels out."""
