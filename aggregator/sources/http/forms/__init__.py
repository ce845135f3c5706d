"""The forms of other APIs than OpenAI's: a file each reads their bodies and writes their answers."""
