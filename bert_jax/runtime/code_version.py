"""The version of this package's code: its commit, and a digest of its files."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess


def git_commit() -> str:
    """The commit of this package, with `+` appended if its files have uncommitted changes; "unknown" outside of git."""
    here = pathlib.Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def code_digest() -> str:
    """The first digits of the SHA-256 of this package's files, which tells copies without git apart."""
    here, digest = pathlib.Path(__file__).resolve().parents[1], hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        digest.update(f"{path.relative_to(here)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
