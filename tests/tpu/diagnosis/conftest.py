from __future__ import annotations

from tests.storage.conftest import bucket, emulator

__all__ = ["bucket", "emulator"]
