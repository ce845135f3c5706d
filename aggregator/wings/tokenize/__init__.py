"""`/tokenize` and `/detokenize`: the tokens of a text, and the text of tokens, as at vLLM."""
