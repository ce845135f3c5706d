"""Redis as a source: streams of requests, claimed by token count."""
