"""Stateless randomness: a seed for every tuple of what it is for, so that any step can be repeated or skipped.

generator = torch.Generator().manual_seed(seed_from("order", seed, epoch))
"""

import hashlib


def seed_from(purpose: str, *parts: int) -> int:
    """A seed of 63 bits that depends on every part: `seed_from("views", seed, epoch, index)`."""
    key = purpose + ("/%s" * len(parts)) % parts  # once per image: an f-string and a join take longer
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
