"""Why a process does not start."""


class StartError(Exception):
    """Settings, brokers, topics, installation or model do not allow a start; the message says what to do."""
