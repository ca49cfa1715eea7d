"""The exit statuses of `pretrain` and `finetune` after which restarting the same command may succeed."""

from __future__ import annotations

import signal
from collections.abc import Mapping

HUNG = 42
"""The exit status after a hang or the loss of another process: the same command resumes from the newest checkpoint."""

STOPPED = 128 + signal.SIGTERM
"""The exit status of a run stopped by SIGTERM, after saving a checkpoint."""

MENDED_BY_RESTART: Mapping[int, str] = {
    HUNG: "no progress, or another process was lost",
    128 + signal.SIGABRT: "aborted, as JAX does if another process was lost",
    128 + signal.SIGBUS: "crash: bus error",
    128 + signal.SIGKILL: "killed: host memory ran out, or the machine is going away",
    128 + signal.SIGSEGV: "crash: segmentation fault",
    STOPPED: "stopped by SIGTERM on this machine or on another one",
}
"""Exit status -> cause. A restart does not help after any other status: 1 is a bug, 2 a `UserError`, 130 Ctrl-C."""
