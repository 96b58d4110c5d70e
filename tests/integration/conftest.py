"""Each test, and whatever it starts, computes on one core, so that two can run at once (-n 2).

Threads that wait for a core which another process holds made some of them ten times slower, and the
bits of a sum depend on their number. Set before torch is imported, here and in every child.
"""

import os

_ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

for _name, _value in _ONE_CORE.items():
    os.environ.setdefault(_name, _value)
