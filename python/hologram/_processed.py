"""Generation with a Python function between the model and the choice of a token."""

from __future__ import annotations

from typing import Any

from . import _native
from ._native import Tensor

# The options of a sampler.
SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


class Processed:
    """As `llm.Stream`, computed in a session of its own; logits are changed by a function."""

    def __init__(self, model, tokens: list[int], options: dict[str, Any], processor):
        from .llm import Piece

        self._piece = Piece
        self._tokenizer = model.tokenizer
        limit = options.get("max_tokens")
        room = model.config["ctx"] - len(tokens)
        self._limit = room if limit is None else min(limit, room)
        self._full = limit is None or limit > room
        if room < 1:
            raise ValueError(f"the prompt has {len(tokens)} tokens, but the context holds {model.config['ctx']}")
        self._session = model._native.session(None, None)
        self._next_tokens, self._all = tokens, list(tokens)
        self._sampler = _native.Sampler({key: options[key] for key in SAMPLING if key in options})
        self._stops: list[str] = options.get("stop") or []
        if any(not stop for stop in self._stops):
            raise ValueError("stop must not be empty")
        self._ends = set(options.get("stop_tokens") or ())
        self._ignore = bool(options.get("ignore_eos"))
        self._decoder = self._tokenizer.decoder()
        self._processor = processor
        self._held, self._done, self._count = "", False, 0
        self._logprobs = False
        self.prompt_logprobs = None
        self.stats: dict[str, Any] = {"prompt_tokens": len(tokens)}

    def __iter__(self):
        return self

    def __next__(self):
        if self._done:
            raise StopIteration
        if self._count >= self._limit:
            return self._end("context" if self._full else "length", self._decoder.finish())
        logits = self._session.feed(self._next_tokens)
        changed = self._processor(list(self._all), logits)
        if changed is None:
            raise TypeError("logits_processor returned None, not logits")
        if not isinstance(changed, Tensor):
            from ._creation import asarray

            changed = asarray(changed)
        if changed.shape != logits.shape:
            raise ValueError(f"logits_processor returned the shape {changed.shape}, not {logits.shape}")
        token = self._sampler.sample(changed, self._all, len(self._all))
        self._count += 1
        self._all.append(token)
        self._next_tokens = [token]
        self.stats["generated_tokens"] = self._count
        if token in self._ends or (not self._ignore and self._tokenizer.is_end(token)):
            return self._end("end", self._decoder.finish())
        text = self._held + self._decoder.push(token)
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            self._held = ""
            self._done = True
            return self._piece(text[: min(found)[0]], token, None, "stop")
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return self._piece(text[: len(text) - keep], token)

    def _end(self, finish: str, rest: str):
        self._done = True
        return self._piece(self._held + rest, None, None, finish)

    def close(self) -> None:
        """Ends the generation."""
        self._done = True

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def completion(self):
        """Waits for the whole text."""
        from .llm import _collect

        return _collect(self, False)


def _overlap(text: str, stop: str) -> int:
    """The length of the longest beginning of `stop` that ends the text."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
