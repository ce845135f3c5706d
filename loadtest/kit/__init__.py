"""One kit for load tools, tests and faults: traffic that accounts for every query, by every way into tokenbatch."""
