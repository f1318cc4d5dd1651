"""Language models, on the model that the command ships."""

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

import hologram as hg
from conftest import MODEL

PROMPT = "A trait is"


def command(*words):
    environment = {**os.environ, "HOLOGRAM_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "hologram", *words], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_greedy_text_is_that_of_the_command(model, model_path):
    words = ["run", "-m", str(model_path), "--device", "cpu", "--temperature", "0", "-n", "24", "--json", PROMPT]
    want = json.loads(command(*words))["text"]
    whole = model.generate(PROMPT, max_tokens=24, temperature=0)
    assert whole.text == want and len(whole.tokens) == 24 and whole.finish == "length"
    pieces = list(model.stream(PROMPT, max_tokens=24, temperature=0))
    assert "".join(p.text for p in pieces) == want and pieces[-1].finish == "length"
    batch = model.generate([PROMPT, "Ownership"] * 2, max_tokens=24, temperature=0)
    assert [c.text for c in batch[::2]] == [want, want] and batch[1].text == batch[3].text != want

    async def streamed():
        return "".join([p.text async for p in model.stream(PROMPT, max_tokens=24, temperature=0)])

    assert asyncio.run(streamed()) == want
    tokens = model.tokenizer.encode(PROMPT, parse_special=True)
    assert model.generate(tokens, max_tokens=24, temperature=0).text == want


def test_options(model):
    greedy = model.generate(PROMPT, max_tokens=24, temperature=0)
    stop = greedy.text[10:14]
    stopped = model.generate(PROMPT, max_tokens=24, temperature=0, stop=stop)
    assert stopped.finish == "stop" and stopped.text == greedy.text[: greedy.text.index(stop)]
    seeded = [model.generate(PROMPT, max_tokens=16, temperature=1.0, seed=seed).tokens for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    known = model.generate(PROMPT, max_tokens=3, temperature=0, logprobs=2)
    assert [p.token for p in known.logprobs] == known.tokens == [p.top[0].token for p in known.logprobs]
    assert all(p.logprob <= 0 and len(p.top) == 2 for p in known.logprobs)
    first = known.tokens[0]
    assert model.generate(PROMPT, max_tokens=1, temperature=0, logit_bias={first: -float("inf")}).tokens != [first]
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    text = model.generate("JSON:", max_tokens=200, temperature=0, json_schema=schema).text
    assert isinstance(json.loads(text)["n"], int)
    assert model.generate("x", regex="[ab]{3}", temperature=0).text in {
        a + b + c for a in "ab" for b in "ab" for c in "ab"
    }
    for grammar in ['root ::= ("yes" | "no") "."', 'start: ("yes" | "no") "."']:
        assert model.generate("x", grammar=grammar, temperature=0).text in {"yes.", "no."}
    with pytest.raises(ValueError, match='no rule "other"'):
        model.generate("x", grammar="root ::= other")
    for wrong in [dict(temperature=-1.0), dict(top_p=2.0), dict(stop=[""]), dict(logprobs=99)]:
        with pytest.raises(ValueError):
            model.generate(PROMPT, **wrong)
    with pytest.raises(TypeError):
        model.generate(PROMPT, temprature=1)
    for error, name, wrong in [
        (ValueError, "top_p", dict(top_p=2.0)),
        (ValueError, "repeat_penalty", dict(repeat_penalty=0.0)),
        (ValueError, "json_object", dict(json_object=True, regex="a")),
        (TypeError, "temperature", dict(temperature="x")),
        (TypeError, "stop", dict(stop=3)),
        (TypeError, "regex", dict(regex=3)),
        (TypeError, "logits_processor", dict(logits_processor=3)),
        (TypeError, "logits_processor", dict(logits_processor=lambda tokens, logits: None)),
    ]:
        with pytest.raises(error, match=name):
            model.generate(PROMPT, max_tokens=1, **wrong)


def test_a_logits_processor_decides(model):
    greedy = model.generate(PROMPT, max_tokens=12, temperature=0)
    seen = []

    def unchanged(tokens, logits):
        seen.append((len(tokens), logits.shape))
        return logits

    same = model.generate(PROMPT, max_tokens=12, temperature=0, logits_processor=unchanged)
    assert same.text == greedy.text and same.tokens == greedy.tokens
    assert len(seen) == 12 and seen[1][0] == seen[0][0] + 1

    def never_first(tokens, logits):
        logits[greedy.tokens[0]] = -float("inf")
        return logits

    other = model.generate(PROMPT, max_tokens=1, temperature=0, logits_processor=never_first)
    assert other.tokens != greedy.tokens[:1]


def test_sessions_logits_and_measures(model):
    tokens = model.tokenizer.encode(PROMPT)
    session = model.session()
    last = session.feed(tokens)
    every = model.logits(tokens)
    assert every.shape == (len(tokens), model.config["vocab"])
    assert float(hg.max(abs(every[-1] - last))) < 1e-3 * float(hg.max(abs(last)))
    assert session.tokens == tokens and len(session) == len(tokens)
    session.truncate(1)
    again = session.feed(tokens[1:])
    assert float(hg.max(abs(again - last))) < 1e-3 * float(hg.max(abs(last)))
    assert int(hg.argmax(last)) == model.generate(PROMPT, max_tokens=1, temperature=0).tokens[0]
    text = "The standard library defines traits, types and modules. " * 20
    right, shuffled = model.perplexity(text, ctx=64), model.perplexity(" ".join(reversed(text.split())), ctx=64)
    assert 1 < right < shuffled
    with pytest.raises(ValueError):
        model.perplexity("short", ctx=64)
    vector = model.embed("a trait")
    assert vector.shape == (model.config["width"],) and abs(float(hg.sum(vector * vector)) - 1) < 1e-3
    assert model.embed(["a", "b"]).shape == (2, model.config["width"])


def test_perplexity_is_that_of_the_logits_and_of_the_command(model, tmp_path):
    np = pytest.importorskip("numpy")
    text, ctx = (MODEL.parents[3] / "README.md").read_text(encoding="utf-8")[:6000], 64
    tokens = model.tokenizer.encode(text, True)
    costs = []
    for start in range(0, len(tokens) - ctx + 1, ctx):
        # Each window begins with BOS; the tokens after its middle count.
        window = [model.tokenizer.bos, *tokens[start + 1 : start + ctx]]
        rows = np.asarray(model.logits(window), dtype=np.float64)
        logs = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
        costs += [-logs[i, window[i + 1]] for i in range(ctx // 2, ctx - 1)]
    perplexity = model.perplexity(text, ctx=ctx)
    assert perplexity == pytest.approx(np.exp(np.mean(costs)), rel=1e-3)
    assert perplexity == model.perplexity(tokens, ctx=ctx)
    (tmp_path / "text").write_text(text, encoding="utf-8")
    command = ["perplexity", MODEL, "--file", tmp_path / "text", "--ctx", str(ctx), "--device", "cpu", "--json"]
    run = subprocess.run([sys.executable, "-m", "hologram", *command], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["perplexity"] == pytest.approx(perplexity, rel=1e-6)


def test_the_tokenizer(model):
    tokenizer = model.tokenizer
    for text in ["fn main() {}", "äöü € 🦀", ""]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    decoder = tokenizer.decoder()
    pieces = [decoder.push(token) for token in tokenizer.encode("🦀 crab")]
    assert "".join(pieces).strip() + decoder.finish() == "🦀 crab"
    assert tokenizer.vocab_size == model.config["vocab"]


CHAT = MODEL.parents[2] / "hologram-llm" / "tests" / "fixtures" / "chat-tiny.gguf"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
GREEDY = dict(max_tokens=12, temperature=0)


def test_conversations():
    with hg.llm.load(CHAT, device="cpu", ctx=256) as model:
        tokens = model.tokenizer.apply_chat_template(MESSAGES)
        text = model.tokenizer.apply_chat_template(MESSAGES, tokenize=False)
        assert isinstance(text, str) and "Be brief." in text and text.index("Be brief.") < text.index("Hello")
        assert model.tokenizer.encode(text, False, True) == tokens
        longer = model.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
        shorter = model.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=False)
        assert longer == text and longer.startswith(shorter) and len(longer) > len(shorter)

        done = model.generate(tokens, **GREEDY)
        reply = model.chat(MESSAGES, **GREEDY)
        choice = reply["choices"][0]
        assert reply["object"] == "chat.completion"
        assert choice["message"] == {"role": "assistant", "content": done.text}
        assert choice["finish_reason"] == ("length" if done.finish == "length" else "stop")
        usage = reply["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(tokens), len(done.tokens))
        chunks = list(model.chat(MESSAGES, stream=True, **GREEDY))
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == done.text
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        for wrong in [[{"content": "x"}], [{"role": 3, "content": "x"}], "Hello"]:
            with pytest.raises((TypeError, ValueError)):
                model.chat(wrong, **GREEDY)
    with hg.llm.load(MODEL, device="cpu", ctx=64) as model, pytest.raises(ValueError, match="template"):
        model.chat(MESSAGES)


def test_the_shapes_of_other_libraries():
    with hg.llm.load(CHAT, device="cpu", ctx=256) as model:
        tokens = model.tokenizer.apply_chat_template(MESSAGES)
        want, plain = model.generate(tokens, **GREEDY), model.generate("Hello", **GREEDY)
    vllm = hg.compat.LLM(str(CHAT), device="cpu", max_model_len=256)
    params = hg.compat.SamplingParams(max_tokens=12, temperature=0, top_k=-1)
    results = vllm.generate(["Hello", "Hello"], params)
    assert [(r.prompt, r.outputs[0].text, r.outputs[0].token_ids) for r in results] == [
        ("Hello", plain.text, plain.tokens)
    ] * 2
    assert vllm.chat(MESSAGES, params)[0].outputs[0].text == want.text
    one = hg.compat.SamplingParams(max_tokens=1, temperature=0)
    results = vllm.generate(["Hello", "Hello"], [one, params])
    assert [len(r.outputs[0].token_ids) for r in results] == [1, len(plain.tokens)]
    for wrong in ([one], {"max_tokens": 1}):
        with pytest.raises((TypeError, ValueError), match="sampling_params"):
            vllm.generate(["Hello", "Hello"], wrong)
    llama = hg.compat.Llama(str(CHAT), n_ctx=256, device="cpu")
    assert llama("Hello", **GREEDY)["choices"][0]["text"] == plain.text
    known = llama("Hello", logprobs=2, **GREEDY)
    assert known["usage"]["completion_tokens"] == len(plain.tokens) == len(known["choices"][0]["logprobs"]["tokens"])
    assert list(llama("Hello", stream=True, **GREEDY))[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    streamed = llama("Hello", stream=True, **GREEDY)
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == plain.text
    reply = llama.create_chat_completion(MESSAGES, **GREEDY)
    assert reply["choices"][0]["message"]["content"] == want.text
    assert llama.detokenize(llama.tokenize(b"Hello", add_bos=False)) == b"Hello"
    llama.close()


@pytest.mark.skipif(os.name == "nt", reason="signals of another kind")
def test_ctrl_c_and_closing(model_path):
    # A shell's job in the background ignores the signal, and so would Python.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model = hg.llm.load(model_path, device="cpu", ctx=4096)
    text = "a trait is a type and a " * 500
    tokens = model.tokenizer.encode(text)[:4000]
    for what in [
        lambda: model.generate([tokens] * 8, max_tokens=50),
        lambda: list(model.stream(PROMPT, max_tokens=4000, ignore_eos=True)),
        lambda: model.generate(PROMPT, max_tokens=4000, ignore_eos=True, logits_processor=lambda _, logits: logits),
        lambda: (session.truncate(0), session.feed(tokens)),
        lambda: model.tokenizer.encode(text * 200),
        lambda: model.tokenizer.decode(tokens * 1000),
    ]:
        # What was fed when Ctrl-C comes is taken back.
        session = model.session()
        sent = []

        def interrupt():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        late = []
        # A loaded machine may be late itself: the best of three counts.
        while len(late) < 3 and (not late or min(late) > 0.2):
            threading.Timer(0.1, interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                while True:
                    what()
            late.append(time.monotonic() - sent.pop())
        assert min(late) < 0.2, late
    # What a session was fed when Ctrl-C comes is taken back, also at the last moment.
    session, some = model.session(), tokens[:400]
    start = time.monotonic()
    session.feed(some)
    whole = time.monotonic() - start
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for part in (0.1, 0.5, 0.8, 0.9, 0.95):
        session.truncate(0)
        fed = 0
        signal.setitimer(signal.ITIMER_REAL, part * whole)
        try:
            session.feed(some)
            fed = len(some)
            time.sleep(10)  # Until the signal ends it.
        except KeyboardInterrupt:
            assert len(session) == fed, part
    assert model.generate(PROMPT, max_tokens=4, temperature=0).tokens
    stream = model.stream(PROMPT, max_tokens=2000)
    next(stream)
    stream.close()
    assert list(stream) == []
    model.close()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.generate(PROMPT)
    with pytest.raises(FileNotFoundError):
        hg.llm.load("/nowhere.gguf", device="cpu")


def adapter(folder, shape, module):
    """A PEFT folder of rank 1: B · A is 0.01 everywhere."""
    rows, columns = shape
    sizes = {"A": (1, columns), "B": (rows, 1)}
    header, data = {}, b""
    for which, (m, n) in sizes.items():
        name = f"base_model.model.{module}.lora_{which}.weight"
        header[name] = {"dtype": "F32", "shape": [m, n], "data_offsets": [len(data), len(data) + 4 * m * n]}
        data += struct.pack(f"<{m * n}f", *[0.1] * (m * n))
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    return folder


def test_adapters(model, model_path, tmp_path):
    width = model.config["width"]
    good = adapter(tmp_path, (width, width), "model.layers.0.self_attn.o_proj")
    tokens = model.tokenizer.encode(PROMPT)

    def logits(**options):
        with hg.llm.load(model_path, device="cpu", ctx=64, **options) as one:
            return one.session().feed(tokens).tolist()

    plain, changed = logits(), logits(lora=[good])
    assert logits(lora=[(good, 0.0)]) == plain and changed != plain
    # Two adapters add up.
    near = pytest.approx(logits(lora=[(str(good), 2.0)]), rel=1e-3, abs=1e-3)
    assert logits(lora=[good, good]) == near
    with pytest.raises(TypeError, match="must be a list"):
        hg.llm.load(model_path, device="cpu", lora=str(good))
    with pytest.raises(ValueError, match="experts is \"tpu\", but must be"):
        hg.llm.load(model_path, device="cpu", experts="tpu")
    with pytest.raises(ValueError, match="experts is cpu, but the model has no experts"):
        hg.llm.load(model_path, device="cpu", experts="cpu")
    with pytest.raises(ValueError, match="no adapter_config.json"):
        hg.llm.load(model_path, device="cpu", lora=[tmp_path.parent])
    other = tmp_path / "other"
    other.mkdir()
    adapter(other, (width, width), "model.layers.99.self_attn.o_proj")
    with pytest.raises(ValueError, match="layers.99.self_attn.o_proj"):
        hg.llm.load(model_path, device="cpu", lora=[other])


def test_two_threads_stream_from_one_model(model):
    want = model.generate(PROMPT, max_tokens=16, temperature=0).text
    got = [None] * 4

    def work(i):
        got[i] = "".join(p.text for p in model.stream(PROMPT, max_tokens=16, temperature=0))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert got == [want] * 4


def test_exit_with_a_generation_in_flight(model_path):
    code = f"""
import hologram as hg
model = hg.llm.load({str(model_path)!r}, device="cpu", ctx=512)
stream = model.stream("A trait is", max_tokens=400, ignore_eos=True)
next(stream)
x = hg.ones(10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_wrong_options_and_tokens(model):
    tokenizer, vocab = model.tokenizer, model.config["vocab"]
    session = model.session()
    session.feed(tokenizer.encode(PROMPT))
    table = [
        (TimeoutError, "waited", lambda: model.generate(PROMPT, timeout=0, max_tokens=2)),
        (TypeError, "logit_bias", lambda: model.generate(PROMPT, logit_bias=[1])),
        (ValueError, "logit_bias", lambda: model.generate(PROMPT, logit_bias={-1: 1.0})),
        (ValueError, "stop_tokens", lambda: model.generate(PROMPT, stop_tokens=[10**9])),
        (TypeError, "json_object", lambda: model.generate(PROMPT, json_object="x")),
        (ValueError, "max_tokens", lambda: model.generate(PROMPT, max_tokens=-1)),
        (TypeError, "max_tokens", lambda: model.generate(PROMPT, max_tokens=1.5)),
        (ValueError, "top_k", lambda: model.generate(PROMPT, top_k=-1)),
        (ValueError, "seed", lambda: model.generate(PROMPT, seed=-1)),
        (TypeError, r"generate\(\).*bogus", lambda: model.generate(PROMPT, bogus=1)),
        (TypeError, "prompt", lambda: model.generate(b"abc")),
        (TypeError, "prompt", lambda: model.generate(None)),
        (TypeError, "prompt", lambda: model.generate(5)),
        (ValueError, "token", lambda: model.generate([-1])),
        (ValueError, "tokens", lambda: tokenizer.decode([10**9])),
        (ValueError, "tokens", lambda: tokenizer.decode([vocab])),
        (ValueError, "tokens", lambda: tokenizer.token_bytes(-1)),
        (ValueError, "length is 99", lambda: session.truncate(99)),
        (ValueError, "length is -1", lambda: session.truncate(-1)),
        (ValueError, "ctx", lambda: model.session(ctx=-1)),
        (ValueError, "ctx is 512", lambda: model.logits([1] * 513)),
        (ValueError, "2 tokens", lambda: model.perplexity([1])),
        (ValueError, "ctx", lambda: model.perplexity([1, 2, 3], ctx=512)),
    ]
    for name in ("ctx", "sequences"):
        for wrong in (0, -1, 2**40):
            table.append((ValueError, name, lambda k={name: wrong}: hg.llm.load(MODEL, device="cpu", **k)))
    for error, text, call in table:
        with pytest.raises(error, match=text) as caught:
            call()
        assert caught.type is error, (text, caught.type)
    session.truncate(0)
    assert tokenizer.decode([vocab - 1]) is not None


def test_a_session_ends_with_its_model():
    with hg.llm.load(MODEL, device="cpu", ctx=64) as model:
        session = model.session()
        session.feed([1, 2])
    for call in (lambda: session.feed([3]), lambda: session.truncate(0)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_perplexity_of_a_short_text(model):
    text = "A trait is a set of methods."
    tokens = model.tokenizer.encode(text)
    assert model.perplexity(text) == model.perplexity(tokens, ctx=len(tokens)) > 1.0
    assert all(1.0 < model.perplexity(tokens[:n]) < 1e6 for n in (2, 3, 4))
