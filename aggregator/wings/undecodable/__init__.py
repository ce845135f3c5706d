"""Records that aiokafka cannot decode: a bad one costs itself alone, a corrupt batch becomes one dead letter."""
