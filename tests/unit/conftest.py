"""What all unit tests share."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)  # how long an example takes depends on what else the machine does
settings.load_profile("unit")
