"""What a child is told: one JSON file. No torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """`engine`: growpage, vllm, device or kernels. `jobs`: row and workload names, in order.

    deadline: `time.time` after which nothing new starts. settings: of `EngineConfig`; vllm_settings: of `EngineArgs`.
    """

    preset: str
    engine: str
    out: str
    is_tiny: bool = False
    device: str = "cuda"
    model_folder: str = ""
    jobs: tuple[tuple[str, str], ...] = ()
    num_repeats: int = 1
    seed: int = 0
    deadline: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    vllm_settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()  # kernels

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Spec":
        values = json.loads(path.read_text(encoding="utf-8"))
        values["jobs"] = tuple((row, workload) for row, workload in values["jobs"])
        values["only"] = tuple(values["only"])
        return cls(**values)
