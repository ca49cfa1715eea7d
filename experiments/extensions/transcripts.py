"""A source of text: reads the transcripts of talks from the subtitles of their recordings (SubRip, `.srt`, and WebVTT, `.vtt`).

    tpu_scripts/run.sh corpus --source='experiments/extensions/transcripts.py:transcripts:talks/*.srt' \
        --vocab=models/base --output=runs/talks_corpus

Each file is a document. The numbers, times and mark-up of the subtitles are removed. All lines of a talk are joined into one
text, since subtitles break in the middle of sentences. The corpus command calls the function once to count the documents, and
again in each of its processes. Therefore the order and number of documents may depend only on the names of the files."""

import glob
import pathlib
import re

NUMBER_OR_TIME = re.compile(r"WEBVTT.*|\d+|(\d+:)?\d\d:\d\d[,.]\d+ --> .*")
MARKUP = re.compile(r"</?\w+[^>]*>|\{\\[^}]*\}|♪")


def transcripts(pattern):
    """Yields the text of each file, sorted by name."""
    for path in sorted(glob.glob(pattern, recursive=True)):
        lines = pathlib.Path(path).read_text(encoding="utf-8-sig").splitlines()
        spoken = (MARKUP.sub("", line).strip() for line in lines if not NUMBER_OR_TIME.fullmatch(line.strip()))
        yield " ".join(line for line in spoken if line)
