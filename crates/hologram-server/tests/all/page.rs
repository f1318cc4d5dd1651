//! The page: served, shut in its origin. `tools/server/page.mjs` drives it in a browser.

use crate::common::{loading, options};
use hologram_server::{Keys, Options};

#[test]
fn the_page_is_served_and_stays_in_its_origin() {
    // Also without a key and while the model loads.
    let keys = Keys::new(&["secret".into()], None).unwrap();
    let server = loading(Options { keys, ..options() });
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let mut waiting: Vec<String> = vec!["/".into()];
    let mut seen: Vec<String> = Vec::new();
    while let Some(path) = waiting.pop() {
        let file = server.get(&path);
        assert_eq!(file.status, 200, "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';") && policy.contains("connect-src 'self';"), "{policy}");
        let wide = |word: &&str| word.contains("//") || word.contains("unsafe") || *word == "*";
        assert_eq!(policy.split([';', ' ']).find(wide), None, "{path}");
        // No other origin is named. The name of MathML is an address that nothing loads.
        for (at, _) in file.body.match_indices("://") {
            let rest = &file.body[at + 3..];
            let named = rest.starts_with("www.w3.org/1998/Math/MathML") || !rest.starts_with(char::is_alphanumeric);
            assert!(named, "{path}: {:.60}", rest);
        }
        assert!(!file.body.contains("innerHTML =") && !file.body.contains("insertAdjacentHTML"), "{path}");
        // Addresses are relative, so that the page also works below a proxy's path.
        let files = file.body.split('"').filter(|text| text.starts_with("page/") || text.starts_with("./"));
        for name in files.map(|text| text.replace("./", "page/")).map(|text| format!("/{text}")) {
            if !seen.contains(&name) {
                seen.push(name.clone());
                waiting.push(name);
            }
        }
    }
    seen.sort();
    assert_eq!(seen, ["/page/app.js", "/page/markdown.js", "/page/math.js", "/page/store.js", "/page/style.css"]);
}
