"""LLM.generate: shapes, samples, stops, log-probabilities, speculation, batches and threads."""

import math
import threading
from pathlib import Path

import pytest

from fastspec import LLM, DrafterConfig, FinishReason, Guarantee, RequestSpeculation, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "the quick brown fox"


def test_one_prompt(llm: LLM) -> None:
    [result] = llm.generate(PROMPT, GREEDY, progress=False)
    [output] = result.outputs
    assert result.prompt == PROMPT
    assert result.prompt_token_ids == llm.tokenizer.encode(PROMPT)
    assert len(output.token_ids) == 12
    assert output.text == llm.tokenizer.decode(output.token_ids)
    assert output.finish_reason is FinishReason.LENGTH
    assert output.finish_reason == "length"
    assert output.guarantee is Guarantee.EXACT
    assert output.logprobs is None
    assert 0 < output.min_margin < math.inf
    assert output.stats is not None
    assert output.stats.prompt_tokens == len(result.prompt_token_ids)
    assert output.stats.completion_tokens == 12
    assert output.stats.acceptance_length == 1.0
    assert result.finished
    assert (result.text, result.token_ids) == (output.text, output.token_ids)


def test_forms_of_prompts(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    from_text, from_ids = llm.generate([PROMPT, ids], GREEDY, progress=False)
    [alone] = llm.generate(ids, GREEDY, progress=False)
    assert from_text.token_ids == from_ids.token_ids == alone.token_ids
    assert from_ids.prompt is None
    assert llm.generate([], GREEDY, progress=False) == []


def test_token_ids_of_numpy(llm: LLM) -> None:
    numpy = pytest.importorskip("numpy")
    ids = numpy.array(llm.tokenizer.encode(PROMPT))
    assert (
        llm.generate(ids, GREEDY, progress=False)[0].token_ids
        == llm.generate(PROMPT, GREEDY, progress=False)[0].token_ids
    )


def test_order_and_params_of_each(llm: LLM) -> None:
    prompts = [f"{word} the dog" for word in ("over", "lazy", "jumps", "there", "then")] * 3
    params = [SamplingParams(temperature=0, max_tokens=2 + i % 5, ignore_eos=True) for i in range(len(prompts))]
    together = llm.generate(prompts, params, progress=False)
    for prompt, param, result in zip(prompts, params, together, strict=True):
        assert len(result.token_ids) == param.max_tokens
        assert result.token_ids == llm.generate(prompt, param, progress=False)[0].token_ids


def test_samples_and_seeds(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=5, n=3, max_tokens=10, ignore_eos=True)
    [first] = llm.generate(PROMPT, params, progress=False)
    [again] = llm.generate(PROMPT, params, progress=False)
    assert [output.index for output in first.outputs] == [0, 1, 2]
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in again.outputs]
    assert len({tuple(output.token_ids) for output in first.outputs}) == 3
    [drawn] = llm.generate(PROMPT, SamplingParams(max_tokens=10, ignore_eos=True), progress=False)
    repeat = SamplingParams(max_tokens=10, ignore_eos=True, seed=drawn.outputs[0].seed)
    assert llm.generate(PROMPT, repeat, progress=False)[0].token_ids == drawn.token_ids


@pytest.mark.parametrize("count", [0, 1, 4])
def test_logprobs(llm: LLM, count: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=count)
    [output] = llm.generate(PROMPT, params, progress=False)[0].outputs
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids) == 6
    for token, position in zip(output.token_ids, output.logprobs, strict=True):
        assert position.logprob <= 0
        assert len(position.top) == count
        values = [entry.logprob for entry in position.top]
        assert values == sorted(values, reverse=True)
        if count > 0:  # greedy takes the most likely
            assert position.top[0].token == token
            assert position.top[0].logprob == position.logprob


def test_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    [free] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), progress=False)
    stop = free.text[8:11]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=["never in the text", stop])
    [stopped] = llm.generate(PROMPT, params, progress=False)
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.outputs[0].finish_reason == "stop"


def test_stop_token(llm: LLM) -> None:
    [free] = llm.generate(PROMPT, GREEDY, progress=False)
    stop = free.token_ids[5]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[stop])
    [stopped] = llm.generate(PROMPT, params, progress=False)
    assert stopped.outputs[0].finish_reason == "stop"
    assert free.token_ids[: len(stopped.token_ids)] == stopped.token_ids
    assert len(stopped.token_ids) <= free.token_ids.index(stop) + 1


def test_logit_bias_can_force_a_token(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logit_bias={42: 1000.0})
    assert llm.generate(PROMPT, params, progress=False)[0].token_ids == [42] * 5


def test_speculation_changes_no_token(tiny_model_dir: Path, tiny_draft_dir: Path, llm: LLM) -> None:
    prompts = [PROMPT, "dog and then the other dog and then the other"]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True)
    plain = [result.token_ids for result in llm.generate(prompts, params, progress=False)]
    for drafter in ("ngram", f"standalone:{tiny_draft_dir}", f"standalone:{tiny_model_dir}"):
        with LLM(tiny_model_dir, drafter, device="cpu:reference", max_draft_tokens=3, max_num_seqs=4) as speculative:
            results = speculative.generate(prompts, params, progress=False)
            assert [result.token_ids for result in results] == plain
            if drafter.endswith(str(tiny_model_dir)):  # the target drafting for itself is always right
                stats = results[0].outputs[0].stats
                assert stats is not None
                assert stats.acceptance_length > 3
            off = speculative.generate(prompts, params, speculation=RequestSpeculation(enabled=False), progress=False)
            assert [result.token_ids for result in off] == plain
            assert all(
                output.stats is not None and output.stats.drafted_tokens == 0 for r in off for output in r.outputs
            )


def test_longspec_drafts_trees_and_changes_no_token(tiny_model_dir: Path, tiny_longspec_dir: Path, llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True)
    plain = llm.generate(PROMPT, params, progress=False)[0].token_ids
    name = f"longspec:{tiny_longspec_dir}"
    for drafter, nodes in ((name, 68), (DrafterConfig(kind="longspec", model=name[9:], tree_widths=[2, 3]), 5)):
        with LLM(tiny_model_dir, drafter, device="cpu:reference", max_num_seqs=1) as speculative:
            output = speculative.generate(PROMPT, params, progress=False)[0]
            assert output.token_ids == plain
            stats = output.outputs[0].stats
            assert stats is not None
            assert stats.drafted_tokens > (stats.decoding_passes - 6) * nodes
            # 2 KV heads of 16, K and V, float32; a ring of 21 and the rows of all levels but the last, and a spare slot
            rows = 21 + (52 if nodes == 68 else 2) + 1
            assert speculative.info.draft_own_kv_bytes == rows * 2 * 2 * 16 * 4


def test_dflash_drafts_blocks_and_changes_no_token(tiny_model_dir: Path, tiny_dflash_dir: Path, llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True)
    plain = llm.generate(PROMPT, params, progress=False)[0].token_ids
    whole = DrafterConfig(kind="dflash", model=str(tiny_dflash_dir))
    ring = DrafterConfig(kind="dflash", model=str(tiny_dflash_dir), window=10, sinks=2, rebase_positions=True)
    for drafter in (f"dflash:{tiny_dflash_dir}", whole, ring):
        with LLM(tiny_model_dir, drafter, device="cpu:reference", max_num_seqs=1) as speculative:
            output = speculative.generate(PROMPT, params, progress=False)[0]
            assert output.token_ids == plain
            stats = output.outputs[0].stats
            assert stats is not None
            assert stats.drafted_tokens > (stats.decoding_passes - 8) * 7
            per_token = llm.info.kv_bytes_per_token
            assert speculative.info.kv_bytes_per_token == (per_token if drafter is ring else per_token * 5 // 3)


def test_threads_share_one_llm(llm: LLM) -> None:
    prompts = [f"{i} over the lazy dog" for i in range(6)]
    expected = [llm.generate(prompt, GREEDY, progress=False)[0].token_ids for prompt in prompts]
    found: dict[int, list[int]] = {}

    def work(i: int) -> None:
        found[i] = llm.generate(prompts[i], GREEDY, progress=False)[0].token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [found[i] for i in range(6)] == expected


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate([PROMPT, PROMPT], SamplingParams(n=2, max_tokens=4, ignore_eos=True), progress=True)
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "tokens/s" in shown
    assert "τ 1.00" in shown
    llm.generate(PROMPT, GREEDY, progress=False)
    assert capsys.readouterr().err == ""


def test_info_and_stats(llm: LLM) -> None:
    assert llm.info.architecture.startswith("Llama")
    assert llm.info.dtype == "float32"
    assert llm.info.vocab_size == 320
    assert llm.info.max_model_len == 128
    before = llm.stats()
    llm.generate(PROMPT, GREEDY, progress=False)
    after = llm.stats()
    assert after.generated_tokens - before.generated_tokens == 12
    assert after.pages_used == 0
    assert str(after)
    assert after.to_dict()["steps"] == after.steps


def test_closed(tiny_model_dir: Path) -> None:
    loaded = LLM(tiny_model_dir, max_num_seqs=2)
    stream = loaded.stream(PROMPT, GREEDY)
    loaded.close()
    loaded.close()
    with pytest.raises(RuntimeError, match="closed"):
        loaded.generate(PROMPT, GREEDY, progress=False)
    with pytest.raises(RuntimeError, match="closed"):
        next(stream)
    stream.close()
    assert loaded.info.vocab_size == 320  # what is only a value stays readable


def test_without_tokenizer(model_copy: Path) -> None:
    (model_copy / "tokenizer.json").unlink()
    with LLM(model_copy, max_num_seqs=2) as loaded:
        with pytest.raises(ValueError, match=r"tokenizer\.json"):
            loaded.generate(PROMPT, progress=False)
        [result] = loaded.generate([5, 6, 7], GREEDY, progress=False)
        assert len(result.token_ids) == 12
