//! The page for people: a chat in the browser. Its files are part of the binary, and it asks nothing of other origins.

use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue, REFERRER_POLICY};
use hyper::{Response, StatusCode};

use crate::body::{self, Body};

/// The page's files: path, content type, content.
pub static FILES: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("/page/app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
    ("/page/store.js", "text/javascript; charset=utf-8", include_str!("../page/store.js")),
    ("/page/markdown.js", "text/javascript; charset=utf-8", include_str!("../page/markdown.js")),
    ("/page/math.js", "text/javascript; charset=utf-8", include_str!("../page/math.js")),
];

/// What the browser lets the page do: load and call its own origin, and be in no frame. What a model writes could not
/// run even if it became markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
pub fn get(index: usize) -> Response<Body> {
    let (_, content, text) = FILES[index];
    let mut response = body::response(StatusCode::OK, content, text);
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("content-security-policy"), HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The files of another version do not fit.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
