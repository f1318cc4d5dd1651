//! Parses the kernels that texts declare: `KERNEL(name, threads, IN(0, float, x), …)` and the other forms of
//! `arguments.h`.

use super::host;
use super::text::{Language, Result, Text, Token, arguments};

/// The kind of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Pointer,
    Uint,
    Float,
    /// A description of a matrix for the copy engine.
    Map,
    /// The record of a fault.
    Fault,
}

/// A macro that stands for several related arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its type in Rust.
    pub of: &'static str,
    /// The name given to the group.
    pub field: String,
    /// The argument's name within the group.
    pub part: String,
}

impl Group {
    /// Whether it is the range that the next launch reads.
    pub fn is_ahead(&self) -> bool {
        GROUPS.contains(&(AHEAD, self.of))
    }
}

/// A kernel's argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub kind: Kind,
    /// Whether it is memory that the kernel reads before the launch before has ended.
    pub early: bool,
    pub group: Option<Group>,
}

/// Kernels with one declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The macro that declares them, or the kernel.
    pub name: String,
    pub file: String,
    pub line: u32,
    pub parameters: Vec<Parameter>,
    /// The kernels' names, each with the most threads of a workgroup.
    pub entries: Vec<(String, u64)>,
}

/// Macros that stand for several arguments, with their types in Rust.
pub const GROUPS: [(&str, &str); 3] = [("COUNT", "Counted"), ("EXTENT", "Actual"), (AHEAD, "Range")];
/// The macro that comes last in a declaration. It has no buffer indices on Metal, which takes [`METAL_MOST`] arguments.
pub const AHEAD: &str = "AHEAD_RANGE";
const METAL_MOST: usize = 31;
/// Threads that no workgroup exceeds.
const MOST_THREADS: u64 = 1024;
/// The header that alone defines the forms.
const HEADER: &str = "arguments.h";

/// The kernels of a text.
pub fn declarations(text: &Text, language: Language) -> Result<Vec<Declaration>> {
    let own = |t: &&Token| !t.file.ends_with(HEADER);
    let bodies = text.macros.values().flat_map(|m| &m.body);
    for token in text.tokens.iter().chain(bodies).filter(own) {
        if token.is("__global__") {
            return token.error("a kernel is declared without KERNEL: Rust would not know its arguments");
        }
    }
    let attribute = |w: &[Token]| w[0].is("[") && w[1].is("[") && w[2].is("kernel");
    let attributes = text.tokens.windows(3).filter(|w| own(&&w[0]));
    let bodies = text.macros.values().flat_map(|m| m.body.windows(3)).filter(|w| own(&&w[0]));
    if let Some(found) = attributes.chain(bodies).find(|w| attribute(w)) {
        return found[2].error("a kernel is declared without KERNEL: Rust would not know its arguments");
    }
    let mut found = Vec::new();
    scan(text, language, &text.tokens, 0, &mut found)?;
    Ok(found)
}

/// The number of arguments of a form before the kernel's own; `None` if this is no form.
fn form(text: &Text, token: &Token) -> Option<usize> {
    let found = text.macros.get(&token.text).filter(|m| m.file.ends_with(HEADER))?;
    let parameters = found.parameters.as_ref().filter(|p| p.last().is_some_and(|p| &**p == "..."))?;
    token.text.starts_with("KERNEL").then(|| parameters.len() - 1)
}

/// Finds declarations outside of braces.
fn scan(text: &Text, language: Language, tokens: &[Token], depth: usize, found: &mut Vec<Declaration>) -> Result<()> {
    let (mut at, mut braces) = (0, 0);
    while let Some(token) = tokens.get(at) {
        at += 1;
        match &*token.text {
            "{" => braces += 1,
            "}" => braces -= 1,
            _ => {}
        }
        let Some((arguments, length)) = arguments(&tokens[at..]).filter(|_| token.is_word()) else { continue };
        match form(text, token) {
            Some(_) if braces > 0 => return token.error("a kernel is declared within braces"),
            Some(before) => {
                let Some(([name, threads, ..], list)) = arguments.split_at_checked(before) else {
                    return token.error(format!("{} has too few arguments", token.text));
                };
                let [name] = name else { return token.error("a kernel's name is one word") };
                // A number that a function of the text computes is not evaluated.
                let threads = host::expression(text, name, threads, 0).unwrap_or(MOST_THREADS);
                let entry = (name.text.to_string(), threads);
                declare(text, language, token, &tokens[at], entry, list, found)?;
            }
            None if braces == 0 && text.macros.get(&token.text).is_some_and(|m| m.parameters.is_some()) => {
                scan(text, language, &text.expand(token, &arguments, depth)?, depth + 1, found)?;
            }
            None => continue,
        }
        at += length;
    }
    Ok(())
}

fn declare(
    text: &Text,
    language: Language,
    token: &Token,
    open: &Token,
    entry: (String, u64),
    list: &[&[Token]],
    found: &mut Vec<Declaration>,
) -> Result<()> {
    let own = &entry.0;
    let mut parameters = Vec::new();
    for item in list {
        read(text, item, None, None, 0, &mut parameters)?;
    }
    if language == Language::Metal && parameters.len() > METAL_MOST {
        return token.error(format!("{own} has {} arguments, and Metal takes {METAL_MOST}", parameters.len()));
    }
    for (i, p) in parameters.iter().enumerate() {
        if parameters[..i].iter().any(|other| other.name == p.name) {
            return token.error(format!("{own} has two arguments {}", p.name));
        }
    }
    let ahead = |p: &Parameter| p.group.as_ref().is_some_and(|g| g.is_ahead());
    if parameters.iter().skip_while(|p| !ahead(p)).any(|p| !ahead(p)) {
        return token.error(format!("{own}: nothing comes after what is read ahead"));
    }
    if found.iter().flat_map(|d| &d.entries).any(|(name, _)| name == own) {
        return token.error(format!("{own} is declared twice"));
    }
    // Kernels of a text with the same arguments share a structure.
    if let Some(same) = found.iter_mut().find(|d| d.parameters == parameters) {
        same.entries.push(entry);
        return Ok(());
    }
    let (name, file) = (open.within.as_ref().map_or(own.clone(), |name| name.to_string()), open.file.to_string());
    if found.iter().any(|d| d.name == name) {
        return token.error(format!("{name} declares kernels with different arguments"));
    }
    found.push(Declaration { name, file, line: open.line, parameters, entries: vec![entry] });
    Ok(())
}

/// Reads an item of a list of arguments; it becomes several if a macro brings its own commas.
fn read(
    text: &Text,
    item: &[Token],
    from: Option<&Token>,
    group: Option<(&'static str, &str)>,
    depth: usize,
    out: &mut Vec<Parameter>,
) -> Result<()> {
    let mut rest = item;
    while let Some((token, after)) = rest.split_first() {
        if token.is(",") {
            rest = after;
            continue;
        }
        // Errors point at the declaration, not into a macro.
        let from = from.unwrap_or(token);
        let Some((arguments, length)) = arguments(after) else {
            return from.error(format!("{} is no form of an argument", token.text));
        };
        rest = &after[length..];
        let word = |i: usize| match arguments.get(i) {
            Some([word]) if word.is_word() => Ok(word.text.to_string()),
            _ => from.error(format!("{} has other arguments", token.text)),
        };
        let (kind, name) = match (&*token.text, arguments.len()) {
            ("IN" | "OUT" | "EARLY", 3) => (Kind::Pointer, word(2)?),
            ("VAL", 3) => match &*word(1)? {
                "uint" | "unsigned" => (Kind::Uint, word(2)?),
                "float" => (Kind::Float, word(2)?),
                other => return from.error(format!("numbers are uint or float, not {other}")),
            },
            ("MAP" | "EARLY_MAP", 2) => (Kind::Map, word(1)?),
            ("FAULT", 1) => (Kind::Fault, "fault".to_string()),
            ("IN" | "OUT" | "EARLY" | "VAL" | "MAP" | "EARLY_MAP" | "FAULT", n) => {
                return from.error(format!("{} does not take {n} arguments", token.text));
            }
            _ if text.macros.get(&token.text).is_some_and(|m| m.parameters.is_some()) => {
                let expanded = text.expand(token, &arguments, depth)?;
                let of = GROUPS.iter().find(|(name, _)| token.is(name));
                let name = of.map(|(_, rust)| word(1).map(|name| (*rust, name))).transpose()?;
                let own = name.as_ref().map(|(of, name)| (*of, &**name)).or(group);
                read(text, &expanded, Some(from), own, depth + 1, out)?;
                continue;
            }
            _ => return from.error(format!("{} is no form of an argument", token.text)),
        };
        let index = arguments.first().and_then(|tokens| sum(tokens));
        if index != Some(out.len()) {
            let index = index.map_or("no number".into(), |n| n.to_string());
            return from.error(format!("argument {name} is number {}, but is called {index}", out.len()));
        }
        let group = match group {
            None => None,
            Some((of, field)) => {
                let part = match name.strip_prefix(field) {
                    Some("") => "at",
                    Some(part) => part.strip_prefix('_').unwrap_or(part),
                    None => &name,
                };
                Some(Group { of, field: field.to_string(), part: part.to_string() })
            }
        };
        out.push(Parameter { name, kind, early: token.text.starts_with("EARLY"), group });
    }
    Ok(())
}

/// The value of `9 + 1 + 2`.
fn sum(tokens: &[Token]) -> Option<usize> {
    let mut total = 0;
    for (i, token) in tokens.iter().enumerate() {
        match (i % 2, &*token.text) {
            (0, number) => total += number.parse::<usize>().ok()?,
            (_, "+") => {}
            _ => return None,
        }
    }
    (tokens.len() % 2 == 1).then_some(total)
}

/// Merges the declarations of both languages. Kernels of only one language are added; common ones must be equal, except
/// for the prefetch ranges, which Metal lacks.
pub fn both(mut cuda: Vec<Declaration>, metal: Vec<Declaration>) -> Result<Vec<Declaration>> {
    for other in metal {
        let line = other.line;
        let differs = |message| Err(super::text::Error { file: other.file.clone(), line, message });
        let Some(own) = cuda.iter_mut().find(|d| d.name == other.name) else {
            cuda.push(other);
            continue;
        };
        let ahead = |p: &&Parameter| p.group.as_ref().is_none_or(|g| !g.is_ahead());
        if !own.parameters.iter().filter(ahead).eq(&other.parameters) {
            return differs(format!("{} has other arguments on Metal than on CUDA", other.name));
        }
        for (entry, threads) in other.entries {
            match own.entries.iter().find(|(name, _)| *name == entry) {
                Some((_, same)) if *same == threads => {}
                Some(_) => return differs(format!("{entry} has other threads on Metal than on CUDA")),
                None => own.entries.push((entry, threads)),
            }
        }
    }
    Ok(cuda)
}
