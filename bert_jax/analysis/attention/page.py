"""Renders the attention of one text, or of a translation, as a self-contained HTML page. It needs no network and runs in any
browser from 2023 or later."""

from __future__ import annotations

import base64
import html
import importlib.resources
import json
import pathlib
import re
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, UInt8

from bert_jax.analysis.attention.measure import Attention, Text
from bert_jax.analysis.heads.measure import head_names
from bert_jax.analysis.windows import Kind
from bert_jax.files import JsonObject

THUMBNAIL = 64
"""Maximum number of dots along each side of a thumbnail. A dot shows the largest of the weights that it covers."""
PRECISE = 1 << 22
"""The maximum number of weights that are stored in 16 bits each. If there are more, all weights are stored in 8 bits each."""


def attention_page(parts: Sequence[Attention], head: str | None = None) -> str:
    """Returns the page with the parts of a model. The page opens with the head `head` of the last part.

    Weights are stored as square roots, so that small weights have a finer resolution. A weight w that is stored in b bits is
    exact to about sqrt(w) / 2**b. Each head is compressed separately and decompressed when it is shown, so a page of 144 heads
    and 512 tokens opens as quickly as a small one."""
    bits = 16 if sum(found.pieces.values.size for found in parts) <= PRECISE else 8
    data: list[JsonObject] = []
    scripts: list[str] = []
    for found in parts:
        weights = found.pieces.values
        layers, heads, *shape = weights.shape
        names, each = head_names(layers, heads), weights.reshape(-1, *shape)
        size = thumbnail(each[0]).shape
        own: JsonObject = {"name": found.part, "layers": layers, "heads": heads, "thumbnail": size}
        data.append(own | {"rows": _side(found.rows), "columns": _side(found.columns)})
        for name, one in zip(names, each, strict=True):
            scripts.append(f'<script type="text/plain" id="weights-{found.part}{name}">{_stored(one, bits)}</script>')
        small = _packed(b"".join(thumbnail(one).tobytes() for one in each))
        scripts.append(f'<script type="text/plain" id="thumbnails-{found.part}">{small}</script>')
    filled = {
        "TITLE": html.escape(f"Attention of {'/'.join(pathlib.PurePath(parts[0].model).parts[-2:])}"),
        "DATA": json.dumps({"parts": data, "bits": bits, "head": head}, ensure_ascii=False).replace("<", "\\u003c"),
        "HEADS": "\n".join(scripts),
    }
    template = importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return re.sub("@([A-Z]+)@", lambda name: filled[name[1]], template)


def _side(text: Text) -> JsonObject:
    """Returns the tokens and words of the rows, or of the columns."""
    of_token = [(text.segments[word], text.kinds[word] in (Kind.CLS, Kind.SEP)) for word in text.word_of_token]
    segments, specials = zip(*of_token, strict=True)
    return {
        "tokens": text.tokens, "words": text.words, "wordOf": text.word_of_token, "segments": segments, "specials": specials,
    }  # fmt: skip


def thumbnail(weights: Float32[np.ndarray, "Q L"]) -> UInt8[np.ndarray, "_ _"]:
    """Returns a head as a small 8-bit image. Each dot is the square root of the largest weight in its block."""
    for axis, size in enumerate(weights.shape):
        edges = np.unique(np.linspace(0, size, min(size, THUMBNAIL) + 1).astype(int)[:-1])
        weights = np.maximum.reduceat(weights, edges, axis=axis)
    return np.rint(255 * np.sqrt(weights)).astype(np.uint8)


def _stored(weights: Float32[np.ndarray, "Q L"], bits: int) -> str:
    most = 2**bits - 1
    return _packed(np.rint(most * np.sqrt(weights)).astype("<u1" if bits == 8 else "<u2").tobytes())


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()
