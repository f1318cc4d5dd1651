"""Language models.

>>> import hologram as hg
>>> model = hg.llm.load(MODEL, device="cpu")
>>> model.generate("A trait is", max_tokens=3, temperature=0).tokens[:1]
[261]
>>> model.close()
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _native
from ._common import _number, _whole
from ._methods import written as _written
from ._native import Session, Tensor, Tokenizer
from ._processed import SAMPLING, Processed

__all__ = ["Completion", "Model", "Piece", "Session", "Stream", "TokenLogprob", "Tokenizer", "load"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token, the natural logarithm of its probability, its bytes, and the most probable tokens in its place."""

    token: int
    logprob: float
    bytes: bytes
    top: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """A generated token and the text that it completes. The last piece has `finish`, and perhaps no token."""

    text: str
    token: int | None = None
    logprob: TokenLogprob | None = None
    finish: str | None = None


@dataclass(frozen=True)
class Completion:
    """A generated text. `finish` says why it ended: "end", "length", "stop", "context" or "timeout"."""

    text: str
    tokens: list[int]
    finish: str
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def _logprob(raw) -> TokenLogprob | None:
    if raw is None:
        return None
    (token, logprob, text), top = raw
    return TokenLogprob(token, logprob, text, [TokenLogprob(*one) for one in top])


class Stream:
    """A text that is being generated: iterate over its pieces, with `for` or `async for`. `close()`, or dropping it,
    cancels it, also while the prompt is computed."""

    def __init__(self, events, logprobs: bool, prepare=None):
        self._events = events
        self._logprobs = logprobs
        self._waiting: list[Piece] = []
        self._done = False
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.stats: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while not self._waiting:
            if self._done:
                raise StopIteration
            self._take(self._events.next())
        return self._waiting.pop(0)

    def _take(self, event: dict[str, Any] | None) -> None:
        if event is None:
            self._done = True
        elif event["kind"] == "prompt":
            self.prompt_logprobs = [_logprob(raw) for raw in event["logprobs"]]
        elif event["kind"] == "token":
            ids, logprobs = event["ids"], [_logprob(raw) for raw in event["logprobs"]]
            # The text belongs to the last of the tokens that complete it.
            for i, token in enumerate(ids):
                last = i == len(ids) - 1
                own = logprobs[i] if self._logprobs and i < len(logprobs) else None
                self._waiting.append(Piece(event["text"] if last else "", token, own))
            if not ids:
                self._waiting.append(Piece(event["text"]))
        elif event["kind"] == "finished":
            self._done = True
            self.stats = {k: v for k, v in event.items() if k not in ("kind", "finish")}
            self._waiting.append(Piece("", None, None, event["finish"]))

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self._next)
        except asyncio.CancelledError:
            self.close()
            raise
        except _End:
            raise StopAsyncIteration from None

    def _next(self) -> Piece:
        # StopIteration cannot cross a future.
        try:
            return next(self)
        except StopIteration:
            raise _End from None

    def close(self) -> None:
        """Cancels the generation."""
        self._done = True
        self._events.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def completion(self) -> Completion:
        """Waits for the whole text."""
        return _collect(self, self._logprobs)


def _finish_reason(finish: str) -> str:
    """OpenAI's word for the end of a text."""
    return "stop" if finish in ("end", "stop") else "length"


class _End(Exception):
    pass


def _collect(stream, logprobs: bool) -> Completion:
    pieces = list(stream)
    return Completion(
        text="".join(piece.text for piece in pieces),
        tokens=[piece.token for piece in pieces if piece.token is not None],
        finish=pieces[-1].finish or "other" if pieces else "other",
        logprobs=[piece.logprob for piece in pieces if piece.logprob is not None] if logprobs else None,
        prompt_logprobs=stream.prompt_logprobs,
        stats=stream.stats,
    )


# The options that only the engine's own sampling has.
_ENGINE_ONLY = ("json_schema", "json_object", "regex", "grammar", "prompt_logprobs", "logprobs", "priority", "tenant")


# The longest context, and the most sequences at once, of any model.
_LONGEST, _MOST = 1 << 24, 1 << 16

# The options that are whole numbers, with the least and the greatest of each.
_WHOLE = {
    "max_tokens": (0, 2**32 - 1),
    "top_k": (0, 2**32 - 1),
    "min_tokens": (0, 2**32 - 1),
    "logprobs": (0, 2**32 - 1),
    "seed": (0, 2**64 - 1),
    "priority": (-(2**31), 2**31 - 1),
}

# Those that are numbers, texts, and one of which a request may have.
_NUMBERS = ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "timeout")
_TEXTS = ("regex", "grammar", "tenant")
_CONSTRAINTS = ("json_schema", "json_object", "regex", "grammar")

# Those that are true or false.
_FLAGS = ("ignore_eos", "prompt_logprobs", "json_object")


def _given(name: str, value, low: int, high: int | None = None) -> int | None:
    return None if value is None else _whole(name, value, low, high)


def _texts(name: str, value) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{name} must be a string or a list of them, not {value!r}")
    return list(texts)


def _adapters(lora) -> list[tuple[str, float]]:
    if isinstance(lora, (str, os.PathLike)):
        raise TypeError("lora must be a list of adapters, each a path or a tuple of a path and a scale")
    pairs = [one if isinstance(one, tuple) else (one, 1.0) for one in lora]
    return [(os.fspath(path), float(scale)) for path, scale in pairs]


class Model:
    """A language model on a device. Use it in a `with` statement or `close()` it to free its memory at once."""

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        device=None,
        ctx: int | None = None,
        kv: str | None = None,
        sequences: int | None = None,
        kv_memory: int | None = None,
        lora: Sequence[str | os.PathLike | tuple[str | os.PathLike, float]] = (),
        experts: str | None = None,
    ):
        name = None if device is None else str(device)
        ctx, sequences = _given("ctx", ctx, 1, _LONGEST), _given("sequences", sequences, 1, _MOST)
        kv_memory = _given("kv_memory", kv_memory, 0, 2**64 - 1)
        adapters = _adapters(lora)
        self._native = _native.Model(os.fspath(path), name, ctx, kv, sequences, kv_memory, adapters, experts)
        self._tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's files."""
        if self._tokenizer is None:
            self._tokenizer = self._native.tokenizer()
        return self._tokenizer

    @property
    def device(self) -> str:
        """The name of the device."""
        return self._native.device

    @property
    def config(self) -> dict[str, Any]:
        """The model's name and sizes."""
        return self._native.config

    def close(self) -> None:
        """Frees the model's memory. What it generates ends with an error."""
        self._tokenizer = None
        self._native.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __reduce__(self):
        raise TypeError("a model cannot be pickled: load it where it is needed")

    def __repr__(self) -> str:
        return "Model(closed)" if self._native.closed else f"Model({self.config['name']!r}, device={self.device!r})"

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt, True, True)
            if not tokens and self.tokenizer.bos is not None:
                tokens = [self.tokenizer.bos]
            return tokens
        if isinstance(prompt, (bytes, bytearray, dict)) or not hasattr(prompt, "__iter__"):
            raise TypeError(f"a prompt is a text or a sequence of tokens, not {type(prompt).__name__}")
        most = self.config["vocab"] - 1
        return [_whole("a token", token, 0, most) for token in prompt]

    def generate(self, prompt: Any, **options: Any) -> Any:
        """Continues a prompt, a text or its tokens: a `Completion`. A list of prompts is one batch and
        gives a list. Options: those of `stream`."""
        unknown = [name for name in options if name not in (Model.stream.__kwdefaults__ or ())]
        if unknown:
            raise TypeError(f"generate() got an unexpected keyword argument {unknown[0]!r}")
        listed = isinstance(prompt, (list, tuple)) and (not prompt or not hasattr(prompt[0], "__index__"))
        if not listed:
            return self.stream(prompt, **options).completion()
        streams = []
        try:
            for one in prompt:
                streams.append(self.stream(one, **options))
            return [stream.completion() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_tokens: Sequence[int] | None = None,
        ignore_eos: bool = False,
        min_tokens: int | None = None,
        logprobs: int | None = None,
        prompt_logprobs: bool | None = None,
        logit_bias: dict[int, float] | None = None,
        json_schema: dict | bool | str | None = None,
        json_object: bool = False,
        regex: str | None = None,
        grammar: str | None = None,
        timeout: float | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        logits_processor: Callable[[list[int], Tensor], Any] | None = None,
    ) -> Stream:
        """Continues a prompt, piece by piece. Without a seed each call has its own; `temperature=0` always takes the
        most probable token. `logits_processor(tokens, logits)` returns the logits to choose from, computed on the host.
        """
        for name, flag in zip(_FLAGS, (ignore_eos, prompt_logprobs, json_object)):
            if flag is not None and not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {type(flag).__name__}")
        biases = None
        if logit_bias is not None:
            if not hasattr(logit_bias, "items"):
                raise TypeError(f"logit_bias must be a dict of tokens and biases, not {type(logit_bias).__name__}")
            most = self.config["vocab"] - 1
            biases = [(_whole("a token of logit_bias", token, 0, most), bias) for token, bias in logit_bias.items()]
        if temperature is not None and temperature == 0:
            seed = 0 if seed is None else seed
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repeat_penalty": repeat_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "seed": int.from_bytes(os.urandom(6), "little") if seed is None else seed,
            "stop": None if stop is None else _texts("stop", stop),
            "stop_tokens": stop_tokens,
            "ignore_eos": ignore_eos or None,
            "min_tokens": min_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
            "logit_bias": biases,
            "json_schema": json_schema
            if isinstance(json_schema, str) or json_schema is None
            else json.dumps(json_schema),
            "json_object": json_object or None,
            "regex": regex,
            "grammar": grammar,
            "timeout": timeout,
            "priority": priority,
            "tenant": tenant,
        }
        options = {key: value for key, value in options.items() if value is not None}
        for key in (key for key in _NUMBERS if key in options):
            _number(key, options[key])
        for key in (key for key in _TEXTS if not isinstance(options.get(key, ""), str)):
            raise TypeError(f"{key} must be a string, not {type(options[key]).__name__}")
        constraints = [key for key in _CONSTRAINTS if key in options]
        if len(constraints) > 1:
            raise ValueError(f"{constraints[0]} does not go together with {constraints[1]}")
        for key, (least, most) in _WHOLE.items():
            if key in options:
                options[key] = _whole(key, options[key], least, most)
        vocab = self.config["vocab"]
        if stop_tokens is not None:
            options["stop_tokens"] = [_whole("a token of stop_tokens", token, 0, vocab - 1) for token in stop_tokens]
        tokens = self._tokens(prompt)
        if logits_processor is not None:
            if not callable(logits_processor):
                raise TypeError(f"logits_processor must be a function, not {type(logits_processor).__name__}")
            refused = [
                key for key in options if key not in (*SAMPLING, "max_tokens", "stop", "stop_tokens", "ignore_eos")
            ]
            if refused:
                raise ValueError(f"{refused[0]} does not go together with logits_processor")
            return Processed(self, tokens, options, logits_processor)  # type: ignore[return-value]
        return Stream(self._native.submit(tokens, options), logprobs is not None)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: bool = False,
        tools: Sequence[dict] | None = None,
        template: dict | None = None,
        **options,
    ):
        """The reply to a conversation, in the shape of OpenAI's chat completions: a dict, or with `stream=True` an
        iterator of chunks. `template` has further variables of the chat template, such as `enable_thinking`."""
        _, tokens = self._chat(messages, tools, template, True)
        if stream:
            return self._chunks(self.stream(tokens, **options))
        done = self.generate(tokens, **options)
        finish = _finish_reason(done.finish)
        usage = {
            "prompt_tokens": len(tokens),
            "completion_tokens": len(done.tokens),
            "total_tokens": len(tokens) + len(done.tokens),
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": done.text}, "finish_reason": finish}
        return {"object": "chat.completion", "model": self.config["name"], "choices": [choice], "usage": usage}

    def _chat(self, messages, tools, variables, reply: bool) -> tuple[str, list[int]]:
        return _written(self.tokenizer, messages, tools, variables, reply)

    def _chunks(self, pieces: Stream) -> Iterator[dict[str, Any]]:
        with pieces:
            for piece in pieces:
                finish = None if piece.finish is None else _finish_reason(piece.finish)
                delta = {"content": piece.text} if piece.text else {}
                choice = {"index": 0, "delta": delta, "finish_reason": finish}
                yield {"object": "chat.completion.chunk", "model": self.config["name"], "choices": [choice]}

    def session(self, *, ctx: int | None = None, kv: str | None = None) -> Session:
        """A text with a KV cache of its own, extended by hand: `feed`, `truncate`."""
        return self._native.session(_given("ctx", ctx, 1, _LONGEST), kv)

    def logits(self, tokens: str | Sequence[int]) -> Tensor:
        """The logits after each token, at most `ctx`: `float32 [tokens, vocabulary]`, in the host's memory."""
        tokens = self._tokens(tokens)
        if len(tokens) > self.config["ctx"]:
            raise ValueError(f"the text has {len(tokens)} tokens, but ctx is {self.config['ctx']}")
        return self._native.session(max(len(tokens), 1), None).feed(tokens, "all")

    def perplexity(self, text: str | Sequence[int], *, ctx: int | None = None) -> float:
        """How well the model predicts a text: the lower, the better. The method is that of `hologram perplexity`, in
        windows of `ctx` tokens: 512, or all if the text is shorter."""
        tokens = self.tokenizer.encode(text, True) if isinstance(text, str) else self._tokens(text)
        if len(tokens) < 2:
            raise ValueError(f"perplexity takes a text of at least 2 tokens, not {len(tokens)}")
        ctx = min(512, len(tokens)) if ctx is None else _whole("ctx", ctx, 2, len(tokens))
        return self._native.perplexity(tokens, ctx)[0]

    def embed(self, text: str | Sequence[str], *, pooling: str | None = None) -> Tensor:
        """A vector for a text, or a row for each of several; `pooling` is "last", "mean" or "cls"."""
        texts = [text] if isinstance(text, str) else list(text)
        vectors = self._native.embed([self._tokens(one) for one in texts], pooling)
        return vectors[0] if isinstance(text, str) else vectors


def load(
    path: str | os.PathLike,
    *,
    device=None,
    ctx: int | None = None,
    kv: str | None = None,
    sequences: int | None = None,
    kv_memory: int | None = None,
    lora: Sequence[str | os.PathLike | tuple[str | os.PathLike, float]] = (),
    experts: str | None = None,
) -> Model:
    """Loads a `.gguf` file or a folder of safetensors onto a device; "auto" is the best one. `ctx` is the longest
    text in tokens, `kv` the cache's type ("f32", "f16", "f8", "q8", "q4"), `sequences` the most texts computed at once,
    `lora` adapters (PEFT folders or `.gguf` files), each a path or a tuple of a path and a scale. `experts` says where
    those of a mixture are computed: "gpu", "cpu" (with their weights in the host's memory), or "auto", the CPU if the
    model does not fit into the GPU's memory."""
    return Model(
        path, device=device, ctx=ctx, kv=kv, sequences=sequences, kv_memory=kv_memory, lora=lora, experts=experts
    )
