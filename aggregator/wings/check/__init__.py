"""`--check`: try the files, ports, names, brokers and model servers that the settings name, and exit."""
