"""Situations as unit vectors: hashed token n-grams of the code, profile numbers, context.

Deterministic and without downloads. The vector is three unit vectors side by side, each scaled by
the square root of its weight, so that the cosine of two situations is the weighted mean of their
parts' cosines. The n-gram part is feature hashing (Weinberger et al. 2009, arXiv 0902.2206).
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kb_env.types import PROFILE_NAMES, Profile
from memory.entries import Situation

Vector = NDArray[np.float32]

CODE, PROFILE, CONTEXT = 160, 48, 48
DIMENSION = CODE + PROFILE + CONTEXT

TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|[A-Za-z_]\w*|\d[\w.]*|<<<|>>>|[-+*/%&|^<>=!]=|&&|\|\||<<|>>|\S",
    re.S,
)

#: Words that keep their name; every other identifier becomes one token, so that renaming changes nothing.
KEPT = re.compile(
    r"^(?:__\w+|for|if|else|while|do|return|const|constexpr|static|struct|template|typename|extern|unsigned|"
    r"int|float|double|half|half2|float2|float4|int4|uint4|void|bool|char|short|long|size_t|int64_t|uint\d+_t|"
    r"threadIdx|blockIdx|blockDim|gridDim|warpSize|x|y|z|w|asm|volatile|atomic\w+|"
    r"expf?|logf?|sqrtf?|rsqrtf?|tanhf?|erff?|fmaf?|fmaxf?|fminf?|powf?|cuda\w+|wmma|nvcuda|cooperative_groups|"
    r"unroll|pragma|min|max|reinterpret_cast)$"
)

#: 64-bit odd constants that mix the hashes of neighbouring tokens.
_MIX = tuple(np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


class Embedder(Protocol):
    """Anything that maps a situation to a unit vector. ``version`` changes when vectors change."""

    @property
    def version(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, situation: Situation) -> Vector: ...


@functools.lru_cache(maxsize=1 << 16)
def _hash(token: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def tokens(code: str) -> list[str]:
    """Tokens with identifiers and numbers normalised; comments are dropped."""
    found = []
    for match in TOKEN.finditer(code):
        text = match.group()
        if text.startswith(("//", "/*")):
            continue
        if text[0].isdigit():
            text = "#int" if text.isdigit() and len(text) < 5 else "#num"
        elif (text[0].isalpha() or text[0] == "_") and not KEPT.match(text):
            text = "@id"
        found.append(text)
    return found


def code_part(code: str, longest: int = 4) -> NDArray[np.float64]:
    """Signed hashed counts of token n-grams, 1 to ``longest`` tokens, damped by a square root."""
    ids = np.array([_hash(token) for token in tokens(code)], dtype=np.uint64)
    buckets = np.zeros(CODE)
    if not len(ids):
        return buckets
    gram = ids
    with np.errstate(over="ignore"):
        for size in range(1, longest + 1):
            if size > 1:
                if len(ids) < size:
                    break
                gram = (gram[:-1] * _MIX[0]) ^ (ids[size - 1 :] * _MIX[1] + np.uint64(size))
            mixed = gram * _MIX[2]
            values, counts = np.unique(mixed, return_counts=True)
            sign = np.where(values >> np.uint64(63), 1.0, -1.0)
            # Longer grams are rarer and say more.
            weight = sign * np.sqrt(counts) * size
            buckets += np.bincount((values % np.uint64(CODE)).astype(np.int64), weight, minlength=CODE)
    return buckets


def profile_part(profile: Profile | None) -> NDArray[np.float64]:
    """Profile numbers on comparable scales, absent ones zero; percentages centred."""
    part = np.zeros(PROFILE)
    if profile is None:
        return part
    for place, name in enumerate(PROFILE_NAMES):
        value = getattr(profile, name)
        if not math.isfinite(value):
            continue
        if name.endswith("_percent"):
            low, high = value / 50.0 - 1.0, 1.0 - abs(value / 50.0 - 1.0)
        else:
            low = math.log2(1.0 + max(0.0, value)) / 4.0 - 0.5
            high = 1.0 if value > 1.0 else 0.0
        part[2 * place], part[2 * place + 1] = low, 0.5 * high
    return part


def context_part(situation: Situation) -> NDArray[np.float64]:
    """Operator family, dtype and GPU as hashed one-hots, and the problem's scale as soft bins."""
    part = np.zeros(CONTEXT)
    facts = (
        ("family", situation.family, 1.5),
        ("dtype", situation.dtype, 0.7),
        ("device", situation.device, 0.5),
    )
    for name, value, weight in facts:
        for salt in range(2):
            code = _hash(f"{name}={value}/{salt}")
            part[code % 36] += weight if code >> 63 else -weight
    bins = np.arange(12)
    part[36:] = 0.7 * np.exp(-0.5 * (situation.scale - bins) ** 2)
    return part


def unit(part: NDArray[np.float64]) -> NDArray[np.float64]:
    length = float(np.linalg.norm(part))
    return part / length if length > 0 else part


@dataclass(frozen=True)
class HashedEmbedder:
    """The default embedder; the weights of the parts are explicit and sum to one."""

    code: float = 0.45
    profile: float = 0.4
    context: float = 0.15

    @property
    def dimension(self) -> int:
        return DIMENSION

    @property
    def version(self) -> str:
        return f"hashed-1/{self.code:g}/{self.profile:g}/{self.context:g}"

    def embed(self, situation: Situation) -> Vector:
        parts = (
            (self.code, code_part(situation.code)),
            (self.profile, profile_part(situation.profile)),
            (self.context, context_part(situation)),
        )
        whole = np.concatenate([math.sqrt(weight) * unit(part) for weight, part in parts])
        return unit(whole).astype(np.float32)


def to_bytes(vector: Vector) -> bytes:
    return vector.astype("<f2").tobytes()


def from_bytes(data: bytes, dimension: int) -> Vector | None:
    """The stored vector, or None if the bytes are no finite vector of that dimension."""
    if len(data) != 2 * dimension:
        return None
    vector = np.frombuffer(data, dtype="<f2").astype(np.float32)
    if not np.isfinite(vector).all():
        return None
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length > 0 else None
