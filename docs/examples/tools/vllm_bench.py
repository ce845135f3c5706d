"""`vllm bench serve` itself, whose command asks for a package called vllm: the build for CPUs has another name."""

import argparse

from vllm.benchmarks.serve import add_cli_args, main

parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
