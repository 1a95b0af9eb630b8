"""One thread for every process of the tests: tiny tensors gain nothing from more, and shared cores lose a lot."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

from hypothesis import settings

from growpage.host import has_cuda_device

# Without a GPU the kernels run in Triton's interpreter, which must be asked for before anything imports Triton.
if not has_cuda_device():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples on every run of CI; without CI set, new ones each time.
settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
