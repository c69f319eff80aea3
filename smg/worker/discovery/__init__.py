"""Engines that are found and not listed: in a watched file, in Kubernetes. The control process runs one task a source."""

__all__ = ["Discovery"]

from smg.worker.discovery.base import Discovery
