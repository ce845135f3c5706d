"""The services that tokenbatch speaks, as protobuf, and what goes with their messages."""
