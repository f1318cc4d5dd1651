//! Chat templates against the transformers library's output for the same conversations; faulty templates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hologram_llm::gguf::GgufFile;
use hologram_llm::tokenizer::Tokenizer;
use hologram_llm::{ChatTemplate, Conversation, Message};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn the_texts_of_the_reference_library() {
    let table: Value = serde_json::from_str(&std::fs::read_to_string(fixture("templates.json")).unwrap()).unwrap();
    let (mut texts, mut rejections) = (0, 0);
    for (name, entry) in table["templates"].as_object().unwrap() {
        let tokens = entry["tokens"].as_object().unwrap();
        let tokens: BTreeMap<String, String> =
            tokens.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().into())).collect();
        let template = ChatTemplate::new(Path::new("model.gguf"), entry["source"].as_str().unwrap(), tokens).unwrap();
        for case in entry["cases"].as_array().unwrap() {
            let messages: Vec<Message> = case["messages"]
                .as_array()
                .unwrap()
                .iter()
                .map(|m| Message::new(m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
                .collect();
            let got = template.render(&messages, case["prompt"].as_bool().unwrap());
            match case["error"].as_str() {
                Some(error) => {
                    rejections += 1;
                    let want = format!("model.gguf: the chat template rejects the conversation: {error}");
                    assert_eq!(got.expect_err(name).to_string(), want);
                }
                None => {
                    texts += 1;
                    assert_eq!(got.unwrap_or_else(|e| panic!("{name}: {e}")), case["text"].as_str().unwrap(), "{name}");
                }
            }
        }
    }
    assert!(texts > 80 && rejections > 20, "{texts} texts, {rejections} rejections");
}

#[test]
fn templates_see_tools_calls_and_variables() {
    let source = "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool.function.name }}:{{ tool | tojson }};{% endfor %}{% endif %}\
                  {% for m in messages %}{{ m.role }}={{ m.content }}\
                  {% for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %};{% endfor %}\
                  {{ style }} {{ add_generation_prompt }}";
    let tokens = BTreeMap::from([("bos_token".to_string(), "<s>".to_string())]);
    let template = ChatTemplate::new(Path::new("m.gguf"), source, tokens).unwrap();
    assert_eq!(template.source(), source);
    let call = json!({"id": "1", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": 1}}});
    let messages = vec![
        json!({"role": "user", "content": "1 + 2?"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
    ];
    let tools = vec![json!({"type": "function", "function": {"name": "add"}})];
    // A variable replaces a special token, but not the messages.
    let variables = json!({"style": "terse", "bos_token": "<b>", "messages": []}).as_object().unwrap().clone();
    let conversation = Conversation { messages, tools, variables };
    let want = "<b>add:{\"type\": \"function\", \"function\": {\"name\": \"add\"}};user=1 + 2?;\
                assistant=[add {\"b\": 2, \"a\": 1}];terse True";
    assert_eq!(template.render_conversation(&conversation, true).unwrap(), want);
    let none = template.render_conversation(&Conversation::default(), false).unwrap();
    assert_eq!(none, "<s> False");
}

#[test]
fn faults_are_one_sentence_with_the_line() {
    let render = |source: &str| {
        let template = ChatTemplate::new(Path::new("m.gguf"), source, BTreeMap::new());
        template.and_then(|t| t.render(&[Message::new("user", "Hi")], true)).map_err(|e| e.to_string())
    };
    let cases = [
        (
            "a\n\n{{ messages | frobnicate }}",
            "m.gguf: the chat template fails in line 3: unknown filter: filter frobnicate is unknown",
        ),
        ("{% for m in messages %}\n{{ m.role }}\n{% endif %}", "the chat template has an error in line 3: "),
        ("{{ messages", "the chat template has an error in line 1: "),
        ("\n{{ missing.field }}", "the chat template fails in line 2: undefined value"),
        ("\n\n{{ messages[0].content.frobnicate() }}", "the chat template fails in line 3: unknown method"),
        ("{{ 1 + 'a' }}", "fails in line 1"),
        ("{{ strftime_now('%Q') }}", "strftime_now does not support %Q"),
        (
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            "fails in line 1: engine ran out of fuel",
        ),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "fails"),
        ("{% include 'other' %}", "template not found"),
    ];
    for (source, want) in cases {
        let error = render(source).expect_err(source);
        assert!(error.contains(want) && error.lines().count() == 1, "{error}\n  should say: {want}");
    }
    let lists = ("[".repeat(60), "]".repeat(60));
    let deep = format!(
        "{{% set n = namespace(x=[]) %}}{{% for i in range(99999) %}}{{% set n.x = {}n.x{} %}}{{% endfor %}}",
        lists.0, lists.1
    );
    let values = "its values exceed 512 MiB";
    let text = "a long raw text ".repeat(10_000);
    let capture = format!("{{% set a %}}{{% for i in range(90000) %}}{text}{{% endfor %}}{{% endset %}}");
    let nested =
        format!("{{% for a in [1] recursive %}}{{{{ loop({}a{}) }}}}{{% endfor %}}", "[".repeat(60), "]".repeat(60));
    let chain = format!("\n{{{{ {}1 }}}}", "not ".repeat(501));
    // Templates of a few characters that request more text than there is memory, or lists nested deeper than the stack.
    let cases = [
        ("{{ messages | tojson(indent=99999999) }}", "writes more than 64 MiB of text"),
        ("{{ messages | tojson(indent=9223372036854775807) }}", "writes more than 64 MiB of text"),
        ("{{ messages | tojson(separators=['x' * 90000000, ':']) }}", "writes more than 64 MiB of text"),
        ("{{ 'x' * 90000000 }}", "writes more than 64 MiB of text"),
        ("{% for i in range(1000) %}{{ 'x' * 90000 }}{% endfor %}", "writes more than 64 MiB of text"),
        (
            "{% set a %}{% for i in range(1000) %}{{ 'x' * 90000 }}{% endfor %}{% endset %}",
            "writes more than 64 MiB of text",
        ),
        ("{% for i in range(90000) %}{% for i in range(900) %}a long raw text{% endfor %}{% endfor %}", "out of fuel"),
        ("{{ 'a\nb' | indent(999999999) }}", "a filter's number must be at most 10000"),
        ("{{ 'a\nb' | indent(width=999999999) }}", "a filter's number must be at most 10000"),
        ("{{ [1] | batch(99999999999, 1) }}", "a filter's number must be at most 10000"),
        ("{{ [1] | slice(99999999999) }}", "a filter's number must be at most 10000"),
        ("{{ '%99999999999d' | format(1) }}{{ 1 }}", "a format's width must be below 10000"),
        ("{{ '{:99999999999}'.format(1) }}", "a format's width must be below 10000"),
        (&deep, "out of fuel"),
        // Short text that grows large in few steps.
        ("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", values),
        ("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}", values),
        ("{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}", values),
        ("{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}", values),
        (
            "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x|replace('a', n.x) %}{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}",
            values,
        ),
        (
            "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
            values,
        ),
        ("{{ range(90000)|join('x' * 90000)|length }}", values),
        ("{{ ('x' * 90000).join(range(90000))|length }}", values),
        ("{{ (('a\n' * 9000000)|indent(9999))|length }}", values),
        ("{{ (('%9999d' * 900000)|format(1))|length }}", values),
        ("{{ ('{0}' * 900000).format('x' * 9000)|length }}", values),
        ("{% macro f(x, n) %}{{ f([x, x], n - 1) if n else x|string|length }}{% endmacro %}{{ f(1, 25) }}", values),
        ("{% macro f(x, n) %}{{ f([x, x], n - 1) if n else x|tojson|length }}{% endmacro %}{{ f(1, 25) }}", values),
        (
            "{% macro f(x, n) %}{{ f([x, x], n - 1) if n else x }}{% endmacro %}{% set a %}{{ f(1, 25) }}{% endset %}",
            values,
        ),
        ("{% macro f(x, n) %}{{ f([x, x], n - 1) if n else x == x }}{% endmacro %}{{ f(1, 25) }}", values),
        (&capture, "writes more than 64 MiB of text"),
        // Recursion.
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(1000) }}", "recursion limit exceeded"),
        ("{% include 'chat' %}", "could not render include"),
        ("{% block a %}{{ self.a() }}{% endblock %}", "recursion limit exceeded"),
        ("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion limit exceeded"),
        (&nested, "recursion limit exceeded"),
        (&chain, "has an error in line 2: more than 500 operators in one tag"),
    ];
    for (source, want) in cases {
        let error = render(source).expect_err(source);
        assert!(error.contains(want) && error.lines().count() == 1, "{error}\n  should say: {want}");
    }
    // Nested deeper than a usual stack.
    for (part, before, after) in [
        ("{%elif a%}", "{%if a%}", "{%endif%}"),
        ("{%if a%}", "", ""),
        ("not ", "{{ ", "a }}"),
        ("1+", "{{ ", "1 }}"),
        ("1<", "{{ ", "1 }}"),
        ("|e", "{{ a", " }}"),
        ("()", "{{ a", " }}"),
        ("[", "{{ ", " }}"),
        ("(", "{% set ", "a = 1 %}"),
        ("a else b if ", "{{ ", "a }}"),
        ("a if b else ", "{{ ", "a }}"),
        ("-", "{{ ", "1 }}"),
        ("{% with a = [a] %}", "", ""),
    ] {
        if let Err(e) = render(&format!("{before}{}{after}", part.repeat(25_000))) {
            assert!(e.lines().count() == 1 && !e.contains("panic"), "{part}: {e}");
        }
    }
    let error = render(&"a".repeat((256 << 10) + 1)).expect_err("too long");
    assert!(error.contains("the chat template is longer than 256 KiB"), "{error}");
    assert_eq!(render("{{ 'a\nb' | indent(2) }}{{ [1, 2] | batch(2) | list }}").unwrap(), "a\n  b[[1, 2]]");
    assert_eq!(render("{%- generation -%} a {%- endgeneration %}b").unwrap(), "ab");
}

#[test]
fn where_templates_come_from() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("templates-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let render = |tokenizer: &Tokenizer| {
        ChatTemplate::from_folder(&folder, tokenizer)
            .and_then(|t| Ok((t.render(&[Message::new("user", "Hi")], true)?, t.note().is_some())))
            .map_err(|e| e.to_string())
    };
    let chatml = Tokenizer::from_folder(fixture("hf-bpe")).unwrap();
    let plain = Tokenizer::from_folder(fixture("hf-spm")).unwrap();
    assert_eq!(render(&chatml).unwrap(), ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n".into(), true));
    assert!(render(&plain).unwrap_err().contains("has no chat template, and its vocabulary lacks ChatML's tokens"));
    write("tokenizer_config.json", r#"{"chat_template": "A{{ bos_token }}", "bos_token": {"content": "<s>"}}"#);
    assert_eq!(render(&plain).unwrap(), ("A<s>".into(), false));
    let list = r#"{"chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]}"#;
    write("tokenizer_config.json", list);
    assert_eq!(render(&plain).unwrap().0, "D");
    for wrong in ["5", "[\"a\"]", "[{\"name\": \"x\"}]", "{\"a\": 1}"] {
        write("tokenizer_config.json", &format!("{{\"chat_template\": {wrong}}}"));
        assert!(render(&chatml).unwrap_err().contains("the chat template must be a string or a list"), "{wrong}");
    }
    write("chat_template.jinja", "F{{ messages[0].content }}");
    assert_eq!(render(&plain).unwrap().0, "FHi");
    write("chat_template.jinja", "\n{{ x");
    assert!(render(&plain).unwrap_err().contains("chat_template.jinja: the chat template has an error in line 2"));
    write("tokenizer_config.json", "{");
    assert!(render(&plain).unwrap_err().contains("tokenizer_config.json: the file is not JSON"));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Qwen3's switch, whose default is on.
#[test]
fn thinking_is_turned_off_where_the_template_can() {
    let template = |source: &str| ChatTemplate::new(Path::new("test"), source, BTreeMap::new()).unwrap();
    let text = |template: &ChatTemplate| template.render(&[Message::new("user", "Hi")], true).unwrap();
    let source = "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}";
    let mut switch = template(source);
    assert_eq!(text(&switch), "Hi");
    assert!(switch.set_thinking(false));
    assert_eq!(text(&switch), "Hi<think></think>");
    assert!(switch.set_thinking(true));
    assert_eq!(text(&switch), "Hi");
    let mut none = template("{{ messages[0].content }}");
    assert!(!none.set_thinking(false) && text(&none) == "Hi");
}

/// What users write cannot become control tokens, whatever the tokenizer; what the template writes does.
#[test]
fn control_tokens_come_from_the_template_alone() {
    for name in ["tok-bpe", "tok-spm", "hf-bpe", "hf-spm", "hf-unigram"] {
        let tokenizer = match name.starts_with("tok") {
            true => Tokenizer::from_gguf(&GgufFile::open(fixture(name).with_extension("gguf")).unwrap()).unwrap(),
            false => Tokenizer::from_folder(fixture(name)).unwrap(),
        };
        let eos = tokenizer.eos().unwrap();
        let end = tokenizer.token_text(eos).unwrap().into_owned();
        let template = |source: &str| ChatTemplate::new(Path::new("t"), source, BTreeMap::new()).unwrap();
        let (alone, fenced) =
            (template("{{ messages[0].content }}"), template(&format!("{{{{ messages[0].content }}}}{end}")));
        let table = std::fs::read_to_string(fixture(name).with_extension("json")).unwrap();
        let table: Value = serde_json::from_str(&table).unwrap();
        let special =
            table["special"].as_array().unwrap().iter().map(|case| case["text"].as_str().unwrap().to_string());
        let half = &end[..end.len() - 1];
        let own = [
            format!("{end}{end}"),
            format!("é{end} {half}{end}"),
            format!("a {half}"),
            "\u{fdd0}b".into(),
            end.clone(),
        ];
        for text in special.chain(own) {
            let write = |template: &ChatTemplate| {
                template.write(&[Message::new("user", text.as_str())][..].into(), true, &tokenizer).unwrap()
            };
            let written = write(&alone);
            assert_eq!((written.text(), written.len()), (text.clone(), text.len()));
            let plain = tokenizer.encode_with(&text, false, false).unwrap();
            assert_eq!(written.encode(&tokenizer, false).unwrap(), plain, "{name}: {text:?}");
            let ids = write(&fenced).encode(&tokenizer, false).unwrap();
            assert_eq!((&ids[..ids.len() - 1], ids.last()), (&plain[..], Some(&eos)), "{name}: {text:?}");
            let begun = written.encode(&tokenizer, true).unwrap();
            assert_eq!(begun, tokenizer.encode_with(&text, true, false).unwrap(), "{name}: {text:?}");
        }
    }
}
