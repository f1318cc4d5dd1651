//! The search-and-replace table of `docs/migrating.md` turns its lines of candle into its lines of Hologram, which
//! compile and run as a documentation test.

use fancy_regex::Regex;

#[test]
fn the_table_turns_candle_into_hologram() {
    let page = include_str!("../../../../docs/migrating.md");
    let code = |start: &str| {
        let from = page.find(start).expect(start) + start.len();
        &page[from..from + page[from..].find("```").unwrap()]
    };
    let (mut candle, hologram) = (code("```rust,ignore\n").to_string(), code("```rust\n"));
    assert!(candle.lines().count() > 30, "30 lines are promised");
    let rules = page.lines().filter_map(|line| {
        let (search, replace) = line.strip_prefix("| `")?.strip_suffix("` |")?.split_once("` | `")?;
        (!search.starts_with("llama") && !search.starts_with('-')).then_some((search, replace))
    });
    let rules: Vec<_> = rules.collect();
    assert!(rules.len() > 20, "{rules:?}");
    for (search, replace) in rules {
        let search = Regex::new(search).unwrap_or_else(|e| panic!("{search}: {e}"));
        candle = search.replace_all(&candle, replace).into_owned();
    }
    for (got, want) in candle.lines().zip(hologram.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(candle.lines().count(), hologram.lines().count());
}
