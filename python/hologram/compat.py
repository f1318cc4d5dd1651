"""The shapes of other libraries' interfaces, thin over `hologram.llm`: vLLM's `LLM` and llama-cpp-python's `Llama`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from . import llm


@dataclass
class SamplingParams:
    """vLLM's options of a generation."""

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None

    def options(self) -> dict[str, Any]:
        """The options of `llm.Model.generate`."""
        options = dict(vars(self))
        options["repeat_penalty"] = options.pop("repetition_penalty")
        options["stop_tokens"] = options.pop("stop_token_ids")
        options["top_k"] = max(options["top_k"], 0)
        return options


def _options(params: SamplingParams | None) -> dict[str, Any]:
    if params is not None and not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params must be SamplingParams, not {type(params).__name__}")
    return (params or SamplingParams()).options()


def _logprobs(done: llm.Completion) -> dict[str, Any] | None:
    """Log-probabilities in the shape of OpenAI's completions."""
    if done.logprobs is None:
        return None

    def text(one: Any) -> str:
        return one.bytes.decode(errors="replace")

    return {
        "tokens": [text(one) for one in done.logprobs],
        "token_logprobs": [one.logprob for one in done.logprobs],
        "top_logprobs": [{text(other): other.logprob for other in one.top} for one in done.logprobs],
    }


class LLM:
    """A model with vLLM's `generate`: one result per prompt, the text in `result.outputs[0].text`."""

    def __init__(self, model: str, *, device=None, max_model_len: int | None = None, max_num_seqs: int | None = None):
        self.model = llm.load(model, device=device, ctx=max_model_len, sequences=max_num_seqs)

    def generate(
        self,
        prompts: str | Sequence[str],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[SimpleNamespace]:
        """Continues the prompts as one batch, with the same options or those of each."""
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = sampling_params if isinstance(sampling_params, (list, tuple)) else [sampling_params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"sampling_params: there are {len(params)} for {len(prompts)} prompts")
        streams: list[llm.Stream] = []
        try:
            for prompt, own in zip(prompts, params):
                streams.append(self.model.stream(prompt, **_options(own)))
            return [self._result(prompt, stream.completion()) for prompt, stream in zip(prompts, streams)]
        finally:
            for stream in streams:
                stream.close()

    def chat(self, messages: Sequence[dict], sampling_params: SamplingParams | None = None) -> list[SimpleNamespace]:
        """The reply to a conversation."""
        tokens = self.model.tokenizer.apply_chat_template(messages)
        return [self._result(None, self.model.generate(tokens, **_options(sampling_params)))]

    def _result(self, prompt: str | None, done: llm.Completion) -> SimpleNamespace:
        reason = llm._finish_reason(done.finish)
        output = SimpleNamespace(
            index=0, text=done.text, token_ids=done.tokens, finish_reason=reason, logprobs=done.logprobs
        )
        return SimpleNamespace(prompt=prompt, outputs=[output], finished=True)


class Llama:
    """A model with llama-cpp-python's methods, whose results have OpenAI's shape."""

    def __init__(self, model_path: str, *, n_ctx: int | None = None, device=None):
        self.model = llm.load(model_path, device=device, ctx=n_ctx)

    def __call__(self, prompt: str, *, max_tokens: int | None = 16, stream: bool = False, **options) -> Any:
        """Continues a prompt."""
        if stream:
            return self._chunks(prompt, max_tokens, options)
        done = self.model.generate(prompt, max_tokens=max_tokens, **options)
        reason, of_prompt = llm._finish_reason(done.finish), done.stats.get("prompt_tokens", 0)
        return {
            "object": "text_completion",
            "model": self.model.config["name"],
            "choices": [{"index": 0, "text": done.text, "logprobs": _logprobs(done), "finish_reason": reason}],
            "usage": {
                "prompt_tokens": of_prompt,
                "completion_tokens": len(done.tokens),
                "total_tokens": of_prompt + len(done.tokens),
            },
        }

    create_completion = __call__

    def _chunks(self, prompt: str, max_tokens: int | None, options: dict) -> Iterator[dict[str, Any]]:
        for piece in self.model.stream(prompt, max_tokens=max_tokens, **options):
            reason = None if piece.finish is None else llm._finish_reason(piece.finish)
            yield {"object": "text_completion", "choices": [{"index": 0, "text": piece.text, "finish_reason": reason}]}

    def create_chat_completion(self, messages: Sequence[dict], *, stream: bool = False, **options) -> Any:
        """The reply to a conversation."""
        return self.model.chat(messages, stream=stream, **options)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The tokens of a text."""
        return self.model.tokenizer.encode(text.decode(), add_bos, special)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The text of tokens."""
        return self.model.tokenizer.decode(list(tokens)).encode()

    def close(self) -> None:
        """Frees the model."""
        self.model.close()
