//! What the documents promise about themselves: the shape of the README, and where each measured figure comes from.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn document(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tables of a page: the second-level heading over each, its header and its rows as cells.
struct Table {
    heading: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

fn tables(page: &str) -> Vec<Table> {
    let cells =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|c| c.trim().to_string()).collect() };
    let (mut heading, mut tables, mut inside) = (String::new(), Vec::<Table>::new(), false);
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.to_string();
        }
        let in_table = line.starts_with('|');
        match (in_table, inside) {
            (true, false) => tables.push(Table { heading: heading.clone(), header: cells(line), rows: Vec::new() }),
            (true, true) if !line.starts_with("| ---") => tables.last_mut().unwrap().rows.push(cells(line)),
            _ => {}
        }
        inside = in_table;
    }
    tables
}

/// Why a row of results is not traceable, if it is not.
fn fault(table: &Table, row: &[String]) -> Option<&'static str> {
    let cell = |name: &str| table.header.iter().position(|h| h == name).and_then(|at| row.get(at)).map(String::as_str);
    let device = ["NVIDIA", "Apple", "CPU: "].iter().any(|start| table.heading.starts_with(start));
    let is_date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        matches!(parts[..], [y, m, d] if y.len() == 4 && m.len() == 2 && d.len() == 2)
            && text.chars().all(|c| c.is_ascii_digit() || c == '-')
    };
    let is_command = |text: &str| {
        let inner = text.strip_prefix('`').and_then(|t| t.strip_suffix('`')).unwrap_or_default();
        let starts = ["hologram bench ", "hologram load ", "hologram serve ", "benches/", "python/benches/", "tools/"];
        starts.iter().any(|start| inner.starts_with(start))
    };
    match () {
        () if !device => Some("its heading names no device"),
        () if row.len() != table.header.len() => Some("it has another number of cells than its header"),
        () if !cell("date").is_some_and(is_date) => Some("it has no date"),
        () if !cell("command").is_some_and(is_command) => Some("it has no command"),
        () => None,
    }
}

#[test]
fn every_result_names_command_device_and_date() {
    let page = document("benches/RESULTS.md");
    let tables = tables(&page);
    assert!(tables.iter().map(|t| t.rows.len()).sum::<usize>() > 30, "the tables were not found");
    for table in &tables {
        for row in &table.rows {
            assert_eq!(fault(table, row), None, "{}: {row:?}", table.heading);
        }
    }
    // The check sees what it is for.
    let bad = |row: &str| {
        let page = format!("## CPU: x\n\n| what | command | date |\n| --- | --- | --- |\n{row}\n");
        let table = self::tables(&page).pop().unwrap();
        fault(&table, &table.rows[0])
    };
    assert_eq!(bad("| a | `hologram bench x` | 2026-11-23 |"), None);
    assert!(bad("| a | `hologram bench x` | yesterday |").is_some());
    assert!(bad("| a | as above | 2026-11-23 |").is_some());
    assert!(bad("| a | 2026-11-23 |").is_some());
}

#[test]
fn the_readme_shows_figures_of_the_results() {
    let results = document("benches/RESULTS.md");
    let known: HashSet<String> = tables(&results).into_iter().flat_map(|t| t.rows).flatten().collect();
    let readme = document("README.md");
    let speed = tables(&readme).into_iter().find(|t| t.heading == "Speed").expect("a table under Speed");
    for row in &speed.rows {
        for figure in row[1..].iter().filter(|f| *f != "–") {
            assert!(known.contains(figure), "{figure} of {row:?} is in no row of benches/RESULTS.md");
        }
    }
}

/// Lines of prose that are wider than 120 columns. Tables and code cannot be broken.
fn wide(page: &str) -> Vec<&str> {
    let mut code = false;
    let prose = page.lines().filter(|line| {
        code ^= line.trim_start().starts_with("```");
        !code && !line.starts_with('|')
    });
    prose.filter(|line| line.chars().count() > 120).collect()
}

#[test]
fn the_readme_is_short_and_lines_are_narrow() {
    let readme = document("README.md");
    assert!(readme.lines().count() <= 150, "{} lines", readme.lines().count());
    assert!(readme.split_whitespace().count() <= 1500, "{} words", readme.split_whitespace().count());
    // The page on Atlas is made from the instruction table.
    for name in pages().iter().filter(|name| *name != "docs/atlas.md") {
        assert_eq!(wide(&document(name)), [""; 0], "{name}");
    }
}

#[test]
fn the_changelog_has_its_four_sections() {
    let page = document("CHANGELOG.md");
    let headings: Vec<&str> = page.lines().filter(|l| l.starts_with("##")).collect();
    assert!(headings[0].starts_with("## "), "{headings:?}");
    for release in headings.split(|h| h.starts_with("## ")).skip(1) {
        let order = ["### Added", "### Changed", "### Fixed", "### Performance"];
        let places: Vec<_> = release.iter().map(|h| order.iter().position(|o| o == h)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{release:?}");
    }
}

/// The pages: those at the root, and those of `docs`.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<String> = docs.filter(|n| n.ends_with(".md")).map(|n| format!("docs/{n}")).collect();
    pages.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benches/RESULTS.md"].map(String::from));
    pages
}

#[test]
fn links_between_documents_lead_somewhere() {
    let (mut links, mut broken) = (0, Vec::new());
    for page in pages() {
        let folder = root().join(&page).parent().unwrap().to_path_buf();
        let text = document(&page);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|t| !t.contains("://") && !t.starts_with('#') && !t.contains(char::is_whitespace))
        {
            links += 1;
            if !folder.join(target.split('#').next().unwrap()).exists() {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(links > 20 && broken.is_empty(), "{links} links, of which lead nowhere: {broken:#?}");
}

#[test]
fn files_that_the_internals_name_exist() {
    let (mut files, mut missing) = (0, Vec::new());
    for page in ["docs/internals.md", "docs/adding.md"] {
        let text = document(page);
        for word in text.split('`').skip(1).step_by(2).filter(|w| w.contains('/') && !w.contains([' ', '…', '*'])) {
            let (first, rest) = word.split_once('/').unwrap();
            let crates = root().join("crates").join(format!("hologram-{first}"));
            if crates.exists() {
                files += 1;
                if !crates.join(rest).exists() {
                    missing.push(format!("{page}: {word}"));
                }
            }
        }
    }
    assert!(files > 60 && missing.is_empty(), "{files} files, of which are missing: {missing:#?}");
}

/// What `main.rs` does not name is never compiled, and its tests would be lost in silence.
#[test]
fn every_file_of_tests_is_a_module() {
    let mut files = 0;
    for package in fs::read_dir(root().join("crates")).unwrap() {
        let folder = package.unwrap().path().join("tests/all");
        let Ok(main) = fs::read_to_string(folder.join("main.rs")) else { continue };
        for file in fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let is_module = main.lines().any(|line| line == format!("mod {name};"));
            assert!(name == "main" || is_module, "{} is no module of main.rs", path.display());
            files += 1;
        }
    }
    assert!(files > 60, "{files} files");
}

/// The calls of the command that pages show: in `code`, and as lines of a shell.
fn calls(page: &str) -> Vec<String> {
    let (mut calls, mut shell, mut code) = (Vec::new(), false, false);
    for line in page.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            code = !code;
            shell = code && ["sh", "console", "text"].contains(&language);
        } else if shell {
            calls.push(line.trim_start().trim_start_matches("$ ").to_string());
        } else if !code {
            calls.extend(line.split('`').skip(1).step_by(2).map(String::from));
        }
    }
    calls.retain(|call| call.starts_with("hologram "));
    calls
}

fn help(words: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_hologram")).args(words).arg("--help").output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn the_options_of_serve_are_documented() {
    let help = help(&["serve"]);
    // Each begins a line, perhaps after its short form.
    let lines = help.lines().map(|line| line.trim_start().split([' ', ',']).filter(|word| !word.is_empty()));
    let options = lines.flat_map(|words| words.take_while(|word| word.starts_with('-')));
    let options: HashSet<&str> = options.filter(|option| !["-", "-h", "--help"].contains(option)).collect();
    let page = document("docs/cli.md");
    let section = page.split("\n## ").find(|section| section.starts_with("serve")).unwrap();
    let named: HashSet<&str> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect();
    let named: HashSet<&str> = named.into_iter().filter(|word| word.starts_with('-')).collect();
    assert!(options.len() > 40, "{options:?}");
    let missing: Vec<_> = options.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&options).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:?}, unknown: {unknown:?}");
}

#[test]
fn documented_commands_and_options_exist() {
    let (mut helps, mut options, mut unknown) = (std::collections::HashMap::new(), 0, Vec::new());
    for page in pages().iter().filter(|page| *page != "CHANGELOG.md") {
        for call in calls(&document(page)) {
            // Up to a comment or the next command of a pipe; what stands in quotes is the user's.
            let unquoted: String = call.split(['"', '\'']).step_by(2).collect();
            let words: Vec<&str> =
                unquoted.split_whitespace().take_while(|w| !["#", "|", ">", "&&", "…"].contains(w)).skip(1).collect();
            let command: Vec<&str> = match words[..] {
                ["bench", "ops", ..] => vec!["bench", "ops"],
                [first, ..] if first.chars().all(char::is_lowercase) => vec![first],
                _ => Vec::new(),
            };
            let known = helps.entry(command.join(" ")).or_insert_with(|| help(&command));
            if known.is_empty() {
                unknown.push(format!("{page}: {call}: there is no such command"));
            }
            for word in words.iter().filter(|w| w.starts_with('-') && w.len() > 1) {
                let option = word.trim_end_matches([',', ']', ')']).split('=').next().unwrap();
                options += 1;
                // Visible in the help, or an alias as in llama.cpp.
                let listed = known.split(|c: char| c.is_whitespace() || ",[]=".contains(c)).any(|w| w == option);
                if !(listed || ["--temp", "--ctx-size"].contains(&option)) {
                    unknown.push(format!("{page}: {call}: {option}"));
                }
            }
        }
    }
    assert!(options > 60 && unknown.is_empty(), "{options} options, of which unknown: {unknown:#?}");
}
