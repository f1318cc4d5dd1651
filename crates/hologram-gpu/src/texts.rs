//! The texts of native kernels for Apple GPUs, most of which NVIDIA GPUs share, with their headers: every `.k` and
//! `.metal` file, listed by `build/`.

include!(concat!(env!("OUT_DIR"), "/texts.rs"));

/// Whether a text serves Apple GPUs, by its name without the extension.
pub fn is_there(name: &str) -> bool {
    names().any(|n| n == name)
}

/// The names of all texts.
pub fn names() -> impl Iterator<Item = &'static str> {
    TEXTS.iter().map(|(name, _)| *name)
}

/// The name as the table's constant; `None` if there is no such text.
pub fn name(name: &str) -> Option<&'static str> {
    names().find(|n| *n == name)
}

/// A text with its headers inlined, each once: Metal compiles a single string.
pub fn text(name: &str) -> Option<String> {
    let (_, text) = TEXTS.iter().find(|(n, _)| *n == name)?;
    let (mut out, mut seen) = (String::new(), Vec::new());
    include(text, &mut seen, &mut out);
    Some(out)
}

/// The text of one kernel: the others are not compiled, as `WANTED` in `arguments.h` says.
pub fn text_of_kernel(name: &str, entry: &str) -> Option<String> {
    Some(format!("#define ONLY\n#define WANT_{entry} ~,\n{}", text(name)?))
}

fn include(text: &str, seen: &mut Vec<&'static str>, out: &mut String) {
    for line in text.lines() {
        let header = line.trim().strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match header.and_then(|name| HEADERS.iter().find(|(n, _)| *n == name)) {
            Some((name, _)) if seen.contains(name) => {}
            Some((name, text)) => {
                seen.push(name);
                include(text, seen, out);
            }
            None => {
                *out += line;
                out.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_whole() {
        for (name, _) in TEXTS {
            let text = text(name).unwrap();
            assert!(!text.lines().any(|line| line.trim_start().starts_with("#include \"")), "{name}");
            assert_eq!(text.matches("One kernel text, two GPU languages").count(), 1, "{name}");
        }
    }

    #[test]
    fn a_kernel_is_named_before_its_text() {
        let text = text_of_kernel("softmax", "softmax_2").unwrap();
        assert!(text.starts_with("#define ONLY\n#define WANT_softmax_2 ~,\n"), "{}", &text[..80]);
        assert!(text.ends_with(&super::text("softmax").unwrap()));
        assert_eq!(text_of_kernel("none", "softmax_2"), None);
    }
}
