"""vLLM behind the backend protocol: what it is given, and what comes back as ours."""

import importlib.util
import os
from typing import Any

import pytest

from growpage.backends import vllm_fullkv
from growpage.backends.base import Backend
from growpage.backends.vllm_fullkv import VllmFullKV, engine_args
from growpage.engine.config import EngineConfig
from growpage.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from growpage.errors import UsageError
from tests import fake_vllm

CONFIG = EngineConfig(page_size=16, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=64)


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)
    for name in vllm_fullkv._ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def make(**settings: Any) -> VllmFullKV:
    return VllmFullKV(
        engine_args(CONFIG, model="folder"), eos_token_ids=(fake_vllm.EOS,), **settings
    )


def request(name: str, num_prompt_tokens: int = 5, **sampling: Any) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=tuple(range(20, 20 + num_prompt_tokens)),
        sampling=SamplingParams(**sampling),
    )


def run(backend: Backend) -> dict[str, RequestOutput]:
    outputs = {}
    while backend.has_unfinished_requests():
        outputs |= {output.request_id: output for output in backend.step()}
    return outputs


def test_an_output_holds_the_tokens_of_all_steps_and_its_reason() -> None:
    backend = make()
    backend.add_request(request("short", max_tokens=3))
    backend.add_request(request("eos", max_tokens=9))
    backend.add_request(request("on", max_tokens=9, ignore_eos=True))
    outputs = run(backend)
    assert outputs["short"].token_ids == (10, 11, 12)
    assert outputs["short"].finish_reason is FinishReason.LENGTH
    assert outputs["eos"].token_ids == (10, 11, 12, 13, fake_vllm.EOS)
    assert outputs["eos"].finish_reason is FinishReason.STOP
    assert len(outputs["on"].token_ids) == 9
    assert outputs["on"].prompt_token_ids == (20, 21, 22, 23, 24)


def test_sampling_is_passed_by_name_with_token_ids_only() -> None:
    backend = make()
    backend.add_request(
        request("a", temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=41, stop_token_ids=(7,))
    )
    _, params, _ = fake_vllm.LLMEngine.last.requests["a"]
    assert vars(params) == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_tokens": 256,
        "stop_token_ids": [fake_vllm.EOS, 7], "ignore_eos": False, "seed": 41,
        "detokenize": False, "output_kind": "delta",
    }  # fmt: skip


def test_ignore_eos_keeps_the_stop_tokens_of_the_request() -> None:
    backend = make()
    backend.add_request(request("a", ignore_eos=True, stop_token_ids=(7,)))
    assert fake_vllm.LLMEngine.last.requests["a"][1].stop_token_ids == [7]


def test_without_seeds_of_their_own_requests_are_drawn_as_a_batch() -> None:
    backend = make(per_request_seeds=False)
    backend.add_request(request("a", seed=41))
    assert fake_vllm.LLMEngine.last.requests["a"][1].seed is None
    assert backend.describe()["per_request_seeds"] is False


def test_times_and_capacity_are_measured_for_each_request() -> None:
    backend = make()
    backend.add_request(request("a", num_prompt_tokens=14, max_tokens=5, ignore_eos=True))
    metrics = run(backend)["a"].metrics
    assert metrics.first_token_time is not None
    assert metrics.first_scheduled_time is not None
    assert metrics.finished_time is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    assert metrics.max_itl_s is not None
    assert metrics.num_cached_tokens == 2
    assert metrics.num_decode_steps == 4  # with 15, 16, 17 and 18 tokens stored in pages of 16
    assert metrics.avg_capacity_tokens == (16 + 16 + 32 + 32) / 4
    assert metrics.avg_resident_tokens == (15 + 16 + 17 + 18) / 4
    assert metrics.peak_capacity_tokens == 32


def test_statistics_count_tokens_residents_and_preemptions() -> None:
    backend = make()
    for name, length in (("a", 3), ("b", 6)):
        backend.add_request(request(name, max_tokens=length, ignore_eos=True))
    run(backend)
    stats = backend.stats()
    assert (stats.num_steps, stats.num_finished) == (6, 2)
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (10, 9)
    assert stats.num_decode_output_tokens == 7  # all but the two of the first step
    assert stats.decode_wall_s > 0
    assert stats.avg_resident_requests == (2 + 2 + 1 + 1 + 1) / 5
    assert stats.counters.preempt_recompute == 1
    assert stats.num_pages == fake_vllm.NUM_BLOCKS
    assert stats.num_used_pages == fake_vllm.NUM_BLOCKS // 2
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_an_aborted_request_comes_back_with_what_it_had() -> None:
    backend = make()
    backend.add_request(request("a"))
    backend.add_request(request("b", max_tokens=4))
    backend.step()
    backend.abort("a")
    backend.abort("nobody")
    outputs = run(backend)
    assert outputs["a"].finish_reason is FinishReason.ABORT
    assert outputs["a"].token_ids == (10,)
    assert outputs["b"].finish_reason is FinishReason.LENGTH
    assert fake_vllm.LLMEngine.last.aborted == ["a"]


def test_no_tokens_asked_for_is_no_request_of_vllm() -> None:
    backend = make()
    backend.add_request(request("a", max_tokens=0))
    assert fake_vllm.LLMEngine.last.requests == {}
    assert run(backend)["a"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request("a", num_prompt_tokens=70), "longer than the maximum model length"),
        (
            Request(request_id="a", prompt_token_ids=(100,), sampling=SamplingParams()),
            "100 vocabulary",
        ),
    ],
)
def test_what_can_never_run_is_refused_at_once(bad: Request, words: str) -> None:
    backend = make()
    with pytest.raises(UsageError) as caught:
        backend.add_request(bad)
    assert all(word in str(caught.value) for word in ("request a", *words.split()))
    assert "\n" not in str(caught.value)
    assert not backend.has_unfinished_requests()


def test_our_settings_become_those_of_vllm() -> None:
    config = EngineConfig(
        page_size=32, num_pages=70, kv_cache_gib=0.5, max_num_seqs=9, max_num_batched_tokens=4,
        gpu_memory_utilization=0.4, enable_prefix_caching=False, dtype="bfloat16",
        enforce_eager=True, async_scheduling=False,
    )  # fmt: skip
    args = engine_args(config, model="folder", load_format="dummy", seed=3)
    assert args == {
        "model": "folder", "load_format": "dummy", "seed": 3, "dtype": "bfloat16", "block_size": 32,
        "max_num_seqs": 9, "max_num_batched_tokens": 9, "max_model_len": None,
        "gpu_memory_utilization": 0.4, "enable_prefix_caching": False, "enforce_eager": True,
        "async_scheduling": False,
        "kv_cache_memory_bytes": 2**29, "num_gpu_blocks_override": 70,
    }  # fmt: skip


def test_vllm_starts_in_this_process_without_flashinfer_or_a_tokenizer() -> None:
    make()
    args = fake_vllm.LLMEngine.last.args
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert args.kernel_config == {"enable_flashinfer_autotune": False}
    assert args.skip_tokenizer_init is True


def test_a_variable_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    assert make().describe()["environment"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


def test_settings_that_vllm_refuses_are_told_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"vllm: Value error, gpu_memory_utilization") as caught:
        VllmFullKV({"gpu_memory_utilization": 2.0})
    assert "\n" not in str(caught.value)


def test_the_record_names_what_vllm_chose() -> None:
    facts = make().describe()
    assert facts["engine"] == "vllm"
    assert facts["version"] == "0.23.0"
    assert facts["dtype"] == "bfloat16"
    assert facts["async_scheduling"] is True
    assert facts["num_pages"] == fake_vllm.NUM_BLOCKS


def test_shutdown_ends_the_core() -> None:
    backend = make()
    backend.shutdown()
    assert fake_vllm.LLMEngine.last.is_shut_down


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        vllm_fullkv, "find_spec", lambda name: None if name == "vllm" else real(name)
    )
    with pytest.raises(UsageError, match=r"not installed.*\.\[vllm\]"):
        make()
