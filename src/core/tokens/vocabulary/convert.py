#!/usr/bin/env python3
"""Makes o200k.bin, the embedded vocabulary, from a `.tiktoken` file.

    convert.py o200k_base.tiktoken o200k.bin

The source is the asset of that name in the crate tiktoken-rs (MIT), which is OpenAI's published file: a
line for each token, its bytes in base64 and its rank.

A byte-pair vocabulary is a list of merges: each token but the 256 bytes is two earlier ones, the last two
parts that are left when its bytes are merged by the tokens before it. So the file holds, for each token in
the order of ranks, the ranks of its two parts; the bytes of a token follow from them. A token that is one
byte has that byte.

The form, before compression (raw deflate), all tokens in six planes of one byte each:
the low, middle and high bytes of the left ranks, and the same of the right ranks. A token of one byte has
the left rank 0xffff00 + byte, and 0 as its right rank.
"""

import base64
import sys
import zlib


def parts(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that this one is merged from."""
    own = ranks[token]
    pieces = [token[at : at + 1] for at in range(len(token))]
    while len(pieces) > 2:
        pairs = [(ranks.get(pieces[at] + pieces[at + 1], own), at) for at in range(len(pieces) - 1)]
        rank, at = min(pairs)
        assert rank < own, f"{token!r} can't be reached by merges"
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces[0], pieces[1]


def main(source: str, target: str) -> None:
    lines = (line.split() for line in open(source, "rb") if line.strip())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    tokens = sorted(ranks, key=ranks.__getitem__)
    assert [ranks[token] for token in tokens] == list(range(len(tokens))), "ranks have no gaps"
    left, right = [], []
    for token in tokens:
        if len(token) == 1:
            left.append(0xFFFF00 + token[0])
            right.append(0)
        else:
            first, second = parts(token, ranks)
            left.append(ranks[first])
            right.append(ranks[second])
    planes = [bytes((number >> shift) & 0xFF for number in side) for side in (left, right) for shift in (0, 8, 16)]
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    packed = packer.compress(b"".join(planes)) + packer.flush()
    with open(target, "wb") as file:
        file.write(packed)
    print(f"{len(tokens)} tokens, {len(packed)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
