"""The process that holds one engine: `python -m growpage.speed.child SPEC.json`. It appends one JSON line a result.

A row that fails is told in its line and the next one starts; when the whole process dies, its parent has what was
written before.
"""

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from growpage.backends.base import Backend
from growpage.speed import measurement
from growpage.speed.presets import PRESETS, Preset, Row, Workload, tiny
from growpage.speed.spec import Spec

MakeEngine = Callable[[Row], Backend]


class Child:
    """Runs the jobs of a specification in their order, one engine for the neighbours that share a row."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        preset = PRESETS[spec.preset]
        self.preset: Preset = tiny(preset) if spec.is_tiny else preset
        self._rows = {row.name: row for row in self.preset.rows}
        self._workloads = {workload.name: workload for workload in self.preset.workloads}

    def run(self) -> None:
        if self.spec.engine == "device":
            self._run_device()
        elif self.spec.engine == "kernels":
            self._run_kernels()
        else:
            self._run_rows(_our_engines if self.spec.engine == "growpage" else _vllm_engines)

    def _run_rows(self, engines: "Callable[[Child], MakeEngine]") -> None:
        started = time.perf_counter()
        make = engines(self)
        self.write(kind="loaded", seconds=time.perf_counter() - started)
        for name, workloads in self._grouped_jobs():
            if self._is_late():
                self._skip(name, workloads)
                continue
            try:
                self._run_row(make, self._rows[name], workloads)
            except Exception as error:  # the boundary of a row: the traceback goes to the log
                traceback.print_exc()
                self.write(kind="failed", row=name, workload=None, reason=_one_line(error))
            _free_memory()

    def _run_row(self, make: MakeEngine, row: Row, workloads: list[Workload]) -> None:
        started = time.perf_counter()
        backend = make(row)
        try:
            facts = backend.describe()
            self.write(
                kind="engine", row=row.name, start_s=time.perf_counter() - started, facts=facts
            )
            self._warm_up_decisions(backend, row)
            for workload in workloads:
                self._run_workload(backend, row, workload)
        finally:
            backend.shutdown()
            del backend

    def _warm_up_decisions(self, backend: Backend, row: Row) -> None:
        first_pages = row.policy_settings.get("initial_pages")
        if first_pages is not None:
            measurement.warm_up_decisions(
                backend,
                self.preset.shape["vocab_size"],
                page_size=self.preset.page_size,
                first_pages=first_pages,
                max_model_len=self.preset.max_model_len,
            )

    def _run_workload(self, backend: Backend, row: Row, workload: Workload) -> None:
        vocab_size = self.preset.shape["vocab_size"]
        warm_up_s = measurement.warm_up(backend, workload, vocab_size)
        for repeat in range(self.spec.num_repeats):
            if self._is_late():
                self._skip(row.name, [workload])
                return
            _reset_peak()
            result = measurement.measure(
                backend, workload, vocab_size, f"{self.spec.seed}/{repeat}"
            )
            self.write(
                kind="measured",
                row=row.name,
                workload=workload.name,
                repeat=repeat,
                warm_up_s=warm_up_s,
                **result,
                **_memory(),
            )

    def _run_device(self) -> None:
        from growpage.speed.device import measure_rates

        rates = measure_rates(is_tiny=self.spec.is_tiny)
        self.write(kind="device", **rates)

    def _run_kernels(self) -> None:
        from growpage.speed.kernels import measure_kernels

        for result in measure_kernels(is_tiny=self.spec.is_tiny, only=self.spec.only):
            self.write(kind="kernel", **result)
            if self._is_late():
                return

    def _grouped_jobs(self) -> list[tuple[str, list[Workload]]]:
        groups: list[tuple[str, list[Workload]]] = []
        for row, workload in self.spec.jobs:
            if not groups or groups[-1][0] != row:
                groups.append((row, []))
            groups[-1][1].append(self._workloads[workload])
        return groups

    def _skip(self, row: str, workloads: list[Workload]) -> None:
        for workload in workloads:
            self.write(kind="failed", row=row, workload=workload.name, reason="no time left")

    def _is_late(self) -> bool:
        return self.spec.deadline is not None and time.time() > self.spec.deadline

    def write(self, **record: Any) -> None:
        with Path(self.spec.out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _our_engines(child: Child) -> MakeEngine:
    """The model is loaded once; each row has its own engine on it."""
    from growpage.budget.registry import POLICIES
    from growpage.engine.config import EngineConfig
    from growpage.engine.engine import Engine
    from growpage.engine.models.loader import load_model

    preset, spec = child.preset, child.spec
    model = load_model(
        spec.model_folder, dtype=preset.dtype, device=spec.device, load_format="dummy"
    )

    def make(row: Row) -> Backend:
        config = EngineConfig(
            **{
                "device": spec.device,
                "dtype": preset.dtype,
                "page_size": preset.page_size,
                "max_num_seqs": preset.max_num_seqs,
                "max_model_len": preset.max_model_len,
                "gpu_memory_utilization": preset.gpu_memory_utilization,
                "num_pages": preset.num_pages,
                "kv_cache_gib": None if preset.num_pages else preset.kv_cache_gib,
                **row.settings,
                **spec.settings,
            }
        )
        return Engine(model, config, POLICIES[row.policy](**dict(row.policy_settings)))

    return make


def _vllm_engines(child: Child) -> MakeEngine:
    """What a preset leaves open is vLLM's default; noise is drawn for a whole batch, which is its fast path."""
    from growpage.backends.vllm_fullkv import VllmFullKV

    preset, spec = child.preset, child.spec

    def make(row: Row) -> Backend:
        args: Mapping[str, Any] = {
            "model": spec.model_folder,
            "load_format": "dummy",
            "dtype": preset.dtype,
            "max_model_len": preset.max_model_len,
            "gpu_memory_utilization": preset.gpu_memory_utilization,
            "kv_cache_memory_bytes": int(preset.kv_cache_gib * 2**30),
            **row.settings,
            **spec.vllm_settings,
        }
        return VllmFullKV(args, per_request_seeds=False)

    return make


def _memory() -> dict[str, float]:
    """GiB. Peaks are those of torch in this process; `device_used_gib` is what the card has given to anyone."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():  # a core in another process has the memory
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
        "peak_reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "device_used_gib": (total - free) / 2**30,
    }


def _reset_peak() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def main(arguments: list[str]) -> int:
    spec = Spec.read(Path(arguments[0]))
    Child(spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
