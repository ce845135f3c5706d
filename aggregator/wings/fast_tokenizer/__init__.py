"""A faster tokenizer for printable ASCII: `tokenizer.fast`, on by default."""
