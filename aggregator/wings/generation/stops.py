"""Find a stop string in a text that grows, as Knuth, Morris and Pratt do: each new character is looked at once."""

from __future__ import annotations


class StopString:
    """One stop string. `held`: the characters at the end of the text so far that may be its beginning."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.held = 0
        self._borders = _borders(text)

    def read(self, new: str) -> int:
        """Read on. Returns how many of the new characters there are up to its first end; 0: it does not end."""
        text, borders, held, end = self.text, self._borders, self.held, 0
        for place, character in enumerate(new, 1):
            while held and character != text[held]:
                held = borders[held - 1]
            if character == text[held]:
                held += 1
            if held == len(text):
                end = end or place
                held = borders[held - 1]
        self.held = held
        return end


def _borders(text: str) -> list[int]:
    """For each beginning of a text, the length of the longest shorter beginning that it ends with."""
    borders, length = [0] * len(text), 0
    for place in range(1, len(text)):
        while length and text[place] != text[length]:
            length = borders[length - 1]
        if text[place] == text[length]:
            length += 1
        borders[place] = length
    return borders
