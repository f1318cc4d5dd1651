"""Stands in for vLLM's `tests/utils.py`: starts `hologram serve` where the tests start `vllm serve`.

Maps flags only: requests and answers are untouched. Environment: HOLOGRAM is the command, HOLOGRAM_MODEL the model that
stands in for all others (the built-in one if it is not set), HOLOGRAM_TEMPLATE its chat template.
"""

import contextlib
import os
import socket
import subprocess
import time

import httpx
import openai

# Flags with a value, and what they are called here; None: the default serves.
VALUES = {
    "--max-model-len": "--ctx",
    "--max-num-seqs": "--max-sequences",
    "--host": "--host",
    "--port": "--port",
    "--uds": "--unix-socket",
    "--api-key": "--api-key",
    "--seed": "--seed",
    "--max-num-batched-tokens": "--step-tokens",
    "--root-path": "--root-path",
    **dict.fromkeys(
        "--dtype --lora-modules --max-lora-rank --max-cpu-loras --chat-template --reasoning-parser --tool-call-parser"
        " --tensor-parallel-size --structured-outputs-config.backend --gpu-memory-utilization"
        " --max-logprobs --runner".split()
    ),
}
# Flags without a value that change nothing here.
ALWAYS = set(
    "--enforce-eager --enable-prompt-tokens-details --no-enable-prefix-caching --disable-frontend-multiprocessing"
    " --enable-lora --enable-chunked-prefill --enable-auto-tool-choice --enable-prefix-caching"
    " --enable-request-id-headers --enable-server-load-tracking".split()
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args, *, env_dict=None, seed=0, auto_port=True, max_wait_seconds=None, **_):
        given, words = {}, iter(vllm_serve_args)
        for word in words:
            word, _, value = word.partition("=")
            if word in VALUES:
                # Of several the last counts.
                given[word] = value or next(words)
            elif word not in ALWAYS:
                raise RuntimeError(f"{word} has no counterpart")
        own = ["--load-first"]
        for word, value in given.items():
            own += [VALUES[word], value] if VALUES[word] else []
        names = [model, *(entry.split("=")[0] for entry in given.get("--lora-modules", "").split() if entry)]
        for name in names:
            own += ["--alias", name]
        self.uds, self.host = given.get("--uds"), given.get("--host", "localhost")
        self.port = int(given.get("--port", free_port()))
        if not self.uds and "--port" not in given:
            own += ["--port", str(self.port)]
        if "--seed" not in given and seed is not None:
            own += ["--seed", str(seed)]
        if template := os.environ.get("HOLOGRAM_TEMPLATE"):
            own += ["--chat-template", template]
        if stand_in := os.environ.get("HOLOGRAM_MODEL"):
            own += ["--model", stand_in]
        env = {**os.environ, **(env_dict or {})}
        if key := env.get("VLLM_API_KEY"):
            own += ["--api-key", key]
        self.proc = subprocess.Popen([os.environ.get("HOLOGRAM", "hologram"), "serve", *own], env=env)
        client = httpx.Client(transport=httpx.HTTPTransport(uds=self.uds)) if self.uds else httpx
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if client.get(self.url_for("health")).status_code == 200:
                    return
            if self.proc.poll() is not None:
                raise RuntimeError("the server has ended")
            time.sleep(0.1)
        raise RuntimeError("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.terminate()
        try:
            self.proc.wait(8)
        except subprocess.TimeoutExpired:
            self.proc.kill()

    @property
    def url_root(self):
        # vLLM takes any host name; a server without keys here only addresses and localhost.
        return "http://localhost" if self.uds else f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(parts)

    def get_client(self, **kwargs):
        kwargs = {"timeout": 600, **kwargs}
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)

    def get_async_client(self, **kwargs):
        kwargs = {"timeout": 600, **kwargs}
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)


# Used by decorators of tests of other devices.
def multi_gpu_test(**_):
    return lambda test: test
