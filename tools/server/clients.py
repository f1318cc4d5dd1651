"""Drives the official Python clients and the frameworks above them, unmodified, against `hologram serve` with a tiny
model.

    python3 -m venv V && V/bin/pip install -r tools/server/requirements.txt
    V/bin/python tools/server/clients.py target/debug/hologram

Each check is a function below; the first that fails ends the run.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import anthropic
import instructor
import litellm
import ollama
import openai
import pydantic_ai
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = pathlib.Path(__file__).parents[2] / "crates/hologram-llm/tests/fixtures/chat-tiny.gguf"
KEY = "secret"
# Writes tools and calls as Hermes and Qwen do.
TEMPLATE = """{% if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls %}\
<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class Answer(BaseModel):
    """A schema. A tiny model would add members until its tokens are over."""

    model_config = ConfigDict(extra="forbid")
    yes: bool
    digit: int


def chat(client):
    reply = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=8, n=2, seed=1)
    assert len(reply.choices) == 2 and reply.usage.completion_tokens <= 16
    assert reply.choices[0].message.role == "assistant"


def stream(client):
    settings = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    chunks = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    with client.chat.completions.stream(**settings) as events:
        assert events.get_final_completion().choices[0].message.content == text


def logprobs(client):
    reply = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, logprobs=True, top_logprobs=3)
    for token in reply.choices[0].logprobs.content:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0


def parse(client):
    reply = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Answer, max_tokens=200)
    assert isinstance(reply.choices[0].message.parsed, Answer)


def tools(client):
    tool = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
    # A tiny model would call again and again.
    settings = {"model": "tiny", "messages": HELLO, "tools": [tool], "max_tokens": 100}
    settings |= {"tool_choice": "required", "parallel_tool_calls": False}
    reply = client.chat.completions.create(**settings)
    call = reply.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    with client.chat.completions.stream(**settings) as events:
        final = events.get_final_completion().choices[0].message.tool_calls[0]
    assert json.loads(final.function.arguments)["city"] in ("Paris", "Rome")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
    messages = [*HELLO, reply.choices[0].message, result]
    assert client.chat.completions.create(model="tiny", messages=messages, max_tokens=1).choices


def completions(client):
    reply = client.completions.create(model="tiny", prompt=["Hello", "World"], max_tokens=4, echo=True, logprobs=2)
    assert [c.text[:5] for c in reply.choices] == ["Hello", "World"]
    assert reply.choices[0].logprobs.token_logprobs[0] is None
    text = "".join(c.choices[0].text for c in client.completions.create(model="tiny", prompt="Hello", stream=True))
    assert text


def errors(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    try:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=3)
        raise AssertionError("temperature 3 was accepted")
    except openai.BadRequestError as e:
        assert e.param == "temperature", e
    try:
        openai.OpenAI(base_url=client.base_url, api_key="wrong").models.list()
        raise AssertionError("a wrong key was accepted")
    except openai.AuthenticationError:
        pass


def responses(client):
    reply = client.responses.create(model="tiny", input="Hello", instructions="Be brief.", max_output_tokens=8, temperature=0)
    assert reply.usage.output_tokens <= 8 and reply.output[0].type == "message"
    with client.responses.stream(model="tiny", input="Hello", instructions="Be brief.", max_output_tokens=8, temperature=0) as events:
        assert events.get_final_response().output_text == reply.output_text
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    called = client.responses.create(model="tiny", input="Hello", tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=100)
    assert json.loads(called.output[0].arguments)["city"] in ("Paris", "Rome")
    parsed = client.responses.parse(model="tiny", input="Hello", text_format=Answer, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Answer)


def messages(url):
    client = anthropic.Anthropic(base_url=url, api_key=KEY)
    reply = client.messages.create(model="tiny", max_tokens=8, messages=HELLO, extra_body={"temperature": 0})
    assert reply.content[0].type == "text"
    with client.messages.stream(model="tiny", max_tokens=8, messages=HELLO, extra_body={"temperature": 0}) as events:
        assert events.get_final_message().content[0].text == reply.content[0].text
    tool = {"name": "weather", "input_schema": SCHEMA}
    settings = {"model": "tiny", "max_tokens": 100, "messages": HELLO, "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    assert client.messages.create(**settings).content[0].input["city"] in ("Paris", "Rome")
    with client.messages.stream(**settings) as events:
        assert events.get_final_message().content[0].input["city"] in ("Paris", "Rome")
    assert client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens > 0


def ollama_chat(url):
    client = ollama.Client(host=url, headers={"authorization": f"Bearer {KEY}"})
    options = {"num_predict": 8, "temperature": 0}
    reply = client.chat(model="tiny", messages=HELLO, options=options)
    pieces = [p.message.content for p in client.chat(model="tiny", messages=HELLO, options=options, stream=True)]
    assert "".join(pieces) == reply.message.content and reply.done
    assert client.generate(model="tiny", prompt="Hello", options=options).eval_count <= 8
    assert [m.model for m in client.list().models] == ["tiny"]
    assert client.show("tiny").details.family


def structured(url):
    """instructor: a schema through each of its modes that a server of this interface can serve."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]:
        asking = instructor.from_openai(client, mode=mode)
        answer = asking.create(model="tiny", messages=HELLO, response_model=Answer, max_tokens=400, max_retries=2)
        assert isinstance(answer, Answer), mode


def agent(url):
    """pydantic-ai: an agent whose output is a schema, by a tool and natively."""
    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
    for output in [Answer, pydantic_ai.NativeOutput(Answer)]:
        asked = pydantic_ai.Agent(model, output_type=output, model_settings={"max_tokens": 400})
        assert isinstance(asked.run_sync("Hello").output, Answer)


@langchain_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}"


def langchain(url):
    """LangChain: a reply, a stream, a schema, a tool and embeddings."""
    settings = {"base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0}
    model = ChatOpenAI(model="tiny", max_tokens=60, temperature=0, **settings)
    whole = model.invoke("Hello")
    assert whole.content == "".join(chunk.content for chunk in model.stream("Hello"))
    assert whole.usage_metadata["total_tokens"] > 0
    assert isinstance(model.with_structured_output(Answer, method="json_schema").invoke("Hello"), Answer)
    called = model.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False).invoke("Hello")
    assert all(call["name"] == "weather" for call in called.tool_calls)
    # A tiny model's city may be longer than its tokens; the call is left out then.
    assert called.tool_calls or called.response_metadata["finish_reason"] == "length"
    vectors = OpenAIEmbeddings(model="tiny", check_embedding_ctx_length=False, **settings).embed_documents(["a", "b"])
    assert len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 0


def lite(url):
    """LiteLLM's client: through OpenAI's interface and Anthropic's."""
    litellm.telemetry = False
    for model, base in [("openai/tiny", f"{url}/v1"), ("anthropic/tiny", url)]:
        settings = {"model": model, "api_base": base, "api_key": KEY, "messages": HELLO, "max_tokens": 12}
        whole = litellm.completion(**settings, temperature=0)
        chunks = litellm.completion(**settings, temperature=0, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content, (text, whole)


def metrics(url):
    request = urllib.request.Request(f"{url}/metrics", headers={"authorization": f"Bearer {KEY}"})
    text = urllib.request.urlopen(request).read().decode()
    values = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
    assert values["vllm:num_requests_running"] == 0 and values["vllm:generation_tokens_total"] > 0


def main():
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        command = [sys.argv[1], "serve", "-m", str(MODEL), "--alias", "tiny", "--port", "0", "--api-key", KEY]
        command += ["--chat-template", template.name, "--device", "cpu"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().strip()
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
            for check in [chat, stream, logprobs, parse, tools, completions, errors, responses]:
                check(client)
                print("ok:", check.__name__)
            for check in [messages, ollama_chat, structured, agent, langchain, lite, metrics]:
                check(url)
                print("ok:", check.__name__)
            server.terminate()
            assert server.wait(20) == 0, "the server did not end properly"
            print("ok: ended")
        finally:
            server.kill()


os.environ.pop("OPENAI_API_KEY", None)
main()
