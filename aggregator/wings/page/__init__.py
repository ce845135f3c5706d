"""The live page at the monitoring port: the last minute of one aggregator, in a browser."""
