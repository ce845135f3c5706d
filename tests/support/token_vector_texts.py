"""Texts whose every token gets a vector: short, longer than a side takes, with repeats and with a special token."""

TEXTS = (
    "a",
    "hello world",
    "the quick, brown fox jumps! over the lazy dog; " * 3,
    "zebra, zebra and zebra",
    "a [MASK] in it",
)
