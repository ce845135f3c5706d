"""The public messages, as every source decodes and encodes them."""
