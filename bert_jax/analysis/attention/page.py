"""Renders the attention of one text as a self-contained HTML page, which needs no network and runs in any browser from 2023
on."""

from __future__ import annotations

import base64
import html
import importlib.resources
import json
import pathlib
import re
import zlib

import numpy as np
from jaxtyping import Float32, UInt8

from bert_jax.analysis.attention.measure import Attention
from bert_jax.analysis.heads.measure import head_names
from bert_jax.analysis.windows import Kind

THUMBNAIL = 64
"""Maximum number of dots along each side of a thumbnail; a dot shows the largest of the weights that it covers."""
PRECISE = 1 << 22
"""Up to this many weights are stored in 16 bits each, more in 8 bits."""


def attention_page(found: Attention, head: str | None = None) -> str:
    """Returns the page, which opens showing `head`.

    Weights are stored as square roots, so that small weights have a finer resolution: w in b bits is exact to about sqrt(w) /
    2**b. Each head is compressed separately and decompressed when it is shown, so a page of 144 heads and 512 tokens opens as
    quickly as a small one.
    """
    weights = found.pieces.values
    bits = 16 if weights.size <= PRECISE else 8
    layers, heads, n = weights.shape[:3]
    of_token = [(found.segments[word], found.kinds[word]) for word in found.word_of_token]
    data = {
        "tokens": found.tokens,
        "words": found.word_texts,
        "wordOf": found.word_of_token,
        "segments": [segment for segment, _ in of_token],
        "specials": [kind in (Kind.CLS, Kind.SEP) for _, kind in of_token],
        "layers": layers,
        "heads": heads,
        "bits": bits,
        "thumbnail": min(n, THUMBNAIL),
        "head": head,
    }
    names = head_names(layers, heads)
    stored = (_stored(each, bits) for each in weights.reshape(-1, n, n))
    scripts = (f'<script type="text/plain" id="weights-{name}">{text}</script>' for name, text in zip(names, stored, strict=True))
    filled = {
        "TITLE": html.escape(f"Attention of {'/'.join(pathlib.PurePath(found.model).parts[-2:])}"),
        "DATA": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        "THUMBNAILS": _packed(b"".join(thumbnail(each).tobytes() for each in weights.reshape(-1, n, n))),
        "HEADS": "\n".join(scripts),
    }
    template = importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return re.sub("@([A-Z]+)@", lambda name: filled[name[1]], template)


def thumbnail(weights: Float32[np.ndarray, "L L"]) -> UInt8[np.ndarray, "_ _"]:
    """Returns a head as a small 8-bit image: each dot is the square root of the largest weight in its block."""
    edges = np.unique(np.linspace(0, len(weights), min(len(weights), THUMBNAIL) + 1).astype(int)[:-1])
    largest = np.maximum.reduceat(np.maximum.reduceat(weights, edges, axis=0), edges, axis=1)
    return np.rint(255 * np.sqrt(largest)).astype(np.uint8)


def _stored(weights: Float32[np.ndarray, "L L"], bits: int) -> str:
    most = 2**bits - 1
    return _packed(np.rint(most * np.sqrt(weights)).astype("<u1" if bits == 8 else "<u2").tobytes())


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()
