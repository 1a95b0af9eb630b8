"""One thread for every process of the tests: tiny tensors gain nothing from more, and shared cores lose a lot."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
