"""What every process that a test starts inherits."""

import os

# Many engines share few cores. A step in two threads lasts as long as the slower of them, and waits for it at full
# speed, on a core that the other threads need: beside other engines it takes twenty times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
