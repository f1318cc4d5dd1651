#!/usr/bin/env python3
"""MaskBench of github.com/guidance-ai/jsonschemabench against a running `hologram serve`.

    maskbench.py URL FOLDER [EVERY]

FOLDER is its maskbench/data; one of EVERY files is taken. Counts the schemas that the server compiles, and those that
llguidance does alone, and checks instances against the grammar that the server makes of a schema: llguidance's, with
the server's bound of white space. Fails if an invalid instance is accepted or the server answers 5xx.

    pip install llguidance==1.9.1 requests
"""

import collections
import json
import pathlib
import sys

import llguidance
import requests

# As in crates/hologram-llm/src/engine/grammar.rs.
WHITESPACE = r"\x20|(\r?\n){1,2}[\x20\t]{0,40}"

Matcher = llguidance.LLMatcher


def matcher(tokens, schema):
    return Matcher(tokens, Matcher.grammar_from_json_schema(json.dumps(schema)))


def main():
    url, folder, every = sys.argv[1], pathlib.Path(sys.argv[2]), int((sys.argv[3:] or ["1"])[0])
    tokens, session = llguidance.LLTokenizer("byte"), requests.Session()
    count, instances, here_only, wrong = collections.Counter(), collections.Counter(), collections.Counter(), []
    for file in sorted(folder.glob("*.json"))[::every]:
        data = json.loads(file.read_text())
        schema, count["schemas"] = data["schema"], count["schemas"] + 1
        body = {"prompt": "a", "n_predict": 0, "json_schema": schema}
        answer = session.post(f"{url}/completion", json=body)
        count["5xx"] += answer.status_code >= 500
        alone = not matcher(tokens, schema).is_error()
        count["llguidance"] += alone
        if answer.status_code != 200:
            here_only[answer.json()["error"]["message"][:100]] += alone
            continue
        count["server"] += 1
        spaced = {**(schema if isinstance(schema, dict) else {}), "x-guidance": {"whitespace_pattern": WHITESPACE}}
        for test in data.get("tests", []):
            one, text = matcher(tokens, spaced), json.dumps(test["data"], ensure_ascii=False)
            ids = tokens.tokenize_bytes(text.encode())
            accepted = one.try_consume_tokens(ids) == len(ids) and one.is_accepting()
            instances["valid" if test["valid"] else "invalid", accepted] += 1
            if accepted and not test["valid"]:
                wrong.append(file.name)
    print(f"{count['schemas']} schemas: {count['server']} supported, {count['llguidance']} by llguidance alone")
    for kind in ["valid", "invalid"]:
        yes, no = instances[kind, True], instances[kind, False]
        print(f"{yes + no} {kind} instances: {yes} accepted")
    for reason, n in here_only.most_common():
        if n:
            print(f"{n} rejected only here: {reason}")
    if wrong or count["5xx"]:
        sys.exit(f"invalid instances accepted: {wrong}; {count['5xx']} answers of 5xx")


main()
