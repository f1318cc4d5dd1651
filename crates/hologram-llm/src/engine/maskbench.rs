//! MaskBench of guidance-ai/jsonschemabench: schemas with valid and invalid instances, under this crate's limits and by
//! llguidance alone. `tools/server/maskbench.sh` runs it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use super::grammar::{DEADLINE, Grammar, factory_of};
use super::limits;
use super::request::Constraint;

/// What happened to schemas and instances.
#[derive(Default)]
struct Counts {
    schemas: usize,
    supported: usize,
    valid: [usize; 2],
    invalid: [usize; 2],
    slow: usize,
    reasons: BTreeMap<String, usize>,
}

impl Counts {
    fn row(&self, name: &str) -> String {
        format!(
            "{name}: {} of {} schemas supported; {} of {} valid instances accepted; {} of {} invalid ones accepted; {} \
             schemas over the deadline",
            self.supported, self.schemas, self.valid[1], self.valid[0], self.invalid[1], self.invalid[0], self.slow
        )
    }

    fn instances(&mut self, tests: &[Value], accepts: impl Fn(&[u32]) -> bool) -> Vec<usize> {
        let mut wrong = Vec::new();
        for (i, test) in tests.iter().enumerate() {
            // A byte is a token.
            let bytes: Vec<u32> = test["data"].to_string().bytes().map(u32::from).collect();
            let accepted = accepts(&bytes);
            let counts = if test["valid"] == true { &mut self.valid } else { &mut self.invalid };
            counts[0] += 1;
            counts[1] += usize::from(accepted);
            if accepted && test["valid"] != true {
                wrong.push(i);
            }
        }
        wrong
    }
}

fn fulfils(mut matcher: Matcher, bytes: &[u32]) -> bool {
    matcher.try_consume_tokens(bytes).is_ok_and(|n| n == bytes.len()) && matcher.is_accepting().unwrap_or(false)
}

fn theirs(schema: &Value, factory: &ParserFactory) -> Option<Matcher> {
    let parser = factory.create_parser(TopLevelGrammar::from_json_schema(schema.clone()));
    let matcher = Matcher::new(parser);
    matcher.get_error().is_none().then_some(matcher)
}

/// `MASKBENCH`: the folder of its files; `MASKBENCH_EVERY`: one of so many is taken.
#[test]
#[ignore = "needs the files of MaskBench"]
fn maskbench() {
    let folder = PathBuf::from(std::env::var("MASKBENCH").expect("MASKBENCH is the folder of MaskBench's files"));
    let every = std::env::var("MASKBENCH_EVERY").map_or(1, |n| n.parse().unwrap());
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).chain([b"\xff</s>".to_vec()]).collect();
    let factory = factory_of(&bytes, 256, &[256]).unwrap();
    let (mut here, mut alone, mut wrong) = (Counts::default(), Counts::default(), Vec::new());
    for file in files.iter().step_by(every) {
        let value: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let (schema, tests) = (&value["schema"], value["tests"].as_array().map_or(&[][..], Vec::as_slice));
        let constraint = Constraint::JsonSchema(schema.clone());
        let started = Instant::now();
        let compiled = limits::check(&constraint).and_then(|()| Grammar::compile(&constraint, &factory));
        let time: Duration = started.elapsed();
        here.schemas += 1;
        alone.schemas += 1;
        match compiled {
            // The server rejects it then.
            _ if time > DEADLINE => here.slow += 1,
            Ok(grammar) => {
                here.supported += 1;
                let accepted = here.instances(tests, |bytes| fulfils(grammar.copy().matcher, bytes));
                wrong.extend(accepted.into_iter().map(|i| format!("{} {i}", file.display())));
            }
            Err(reason) => {
                let reason: String = reason.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
                *here.reasons.entry(reason).or_default() += 1;
            }
        }
        let started = Instant::now();
        let matcher = theirs(schema, &factory);
        alone.slow += usize::from(started.elapsed() > DEADLINE);
        if let Some(matcher) = matcher {
            alone.supported += 1;
            alone.instances(tests, |bytes| fulfils(matcher.deep_clone(), bytes));
        }
    }
    println!("{}\n{}", here.row("here"), alone.row("llguidance alone"));
    let mut reasons: Vec<_> = here.reasons.iter().collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    reasons.iter().take(25).for_each(|(reason, n)| println!("{n} {reason}"));
    assert!(wrong.is_empty(), "invalid instances accepted: {wrong:#?}");
}
