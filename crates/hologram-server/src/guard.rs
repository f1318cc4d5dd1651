//! What every request passes before its route: request id, host, origin, key. And after it: errors in the protocol's
//! form, CORS, one line of log.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::openapi;
use crate::routes::{self, Call, Protocol};
use crate::server::Shared;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Responds to a request. Never fails: errors are responses.
///
/// # Errors
/// None.
pub async fn respond(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    unix: bool,
) -> std::result::Result<Response<Body>, Infallible> {
    let started = Instant::now();
    let (head, incoming) = request.into_parts();
    let id = request_id(&shared, &head.headers);
    let origin = head.headers.get(header::ORIGIN).cloned();
    let path = below(&shared.options.root_path, head.uri.path()).to_string();
    let method = head.method.clone();
    let protocol = Protocol::of(&path);
    let work = async {
        let preflight = method == Method::OPTIONS && origin.is_some();
        check_head(&shared, &head)?;
        check_host(&shared, &head.headers, unix)?;
        let cross = check_origin(&shared, &head.headers);
        if preflight && !matches!(cross, Ok(false)) {
            // Without the header that names its origin, a browser calls no further.
            return Ok(preflighted(head.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS), cross.is_ok()));
        }
        cross?;
        let found = routes::find(&method, &path);
        let tenant = match &found {
            Ok((row, _)) if row.is_open() => None,
            // Without a key nobody learns which routes there are.
            _ => check_key(&shared, &head.headers)?,
        };
        let (row, route) = found?;
        row.check(&shared.options.without)?;
        let expects = head.headers.contains_key(header::EXPECT);
        let body = match row.takes_body() {
            true => body::read(incoming, &shared.options.limits, expects).await?,
            false => Vec::new(),
        };
        let (query, accepts) = (head.uri.query().map(String::from), openapi::bodies(row.path).request);
        routes::run(route, Call { shared: shared.clone(), tenant, query, body, accepts }).await
    };
    let mut response = match catch(work).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => failed(&error, protocol),
        Err(()) => failed(&ApiError::internal("the server failed to answer; its log says more"), protocol),
    };
    let status = response.status();
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("invalid")));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(allowed) = origin.filter(|origin| allows(&shared, origin)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id"));
        headers.insert(header::VARY, HeaderValue::from_static("origin, access-control-request-headers"));
    }
    let ms = started.elapsed().as_secs_f64() * 1e3;
    if matches!(path.as_str(), "/health" | "/ready" | "/metrics") && status.is_success() {
        tracing::debug!(id, method = %method, path, status = status.as_u16(), ms, "request");
    } else {
        tracing::info!(id, method = %method, path, status = status.as_u16(), ms, "request");
    }
    Ok(response)
}

/// Catches a panic, which is a defect: the client gets an answer, and others are not disturbed.
async fn catch<T>(work: impl Future<Output = T>) -> std::result::Result<T, ()> {
    let mut work = pin!(work);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => Poll::Ready(Err(())),
    })
    .await
}

/// An error as a response.
fn failed(error: &ApiError, protocol: Protocol) -> Response<Body> {
    let mut response = body::json(error.status, &protocol.error(error));
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if error.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if matches!(error.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
        // The rest of the body is not a request.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A path without the part before which a proxy puts the server, if it has that part.
fn below<'p>(root: &str, path: &'p str) -> &'p str {
    path.strip_prefix(root).filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

/// The client's own id if it is short and printable, else a new one.
fn request_id(shared: &Shared, headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let fits = |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    given.filter(fits).map_or_else(|| shared.new_id(""), String::from)
}

/// The host's name without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// The size of the request's line and headers, and the host, which HTTP/1.1 demands.
fn check_head(shared: &Shared, head: &Parts) -> Result<()> {
    // Between names and values are a colon and a space, after them the line's end.
    let headers: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let limit = shared.options.limits.head;
    if headers + target > limit {
        return Err(ApiError::large_head(limit));
    }
    let hosts = head.headers.get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
        return Err(ApiError::bad_request("a request has one Host header"));
    }
    Ok(())
}

/// A page of another site can let its own name resolve to this machine, but not an address or `localhost`.
fn check_host(shared: &Shared, headers: &HeaderMap, unix: bool) -> Result<()> {
    let options = &shared.options;
    let Some(host) = headers.get(header::HOST) else { return Ok(()) };
    let name = host_name(host.to_str().map_err(|_| ApiError::bad_request("the Host header is not text"))?);
    let known = unix
        || !options.keys.is_empty()
        || name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || options.hosts.iter().any(|h| h == "*" || h.eq_ignore_ascii_case(name));
    if known { Ok(()) } else { Err(ApiError::forbidden("this host name is not allowed here; see --allow-host")) }
}

/// Whether the request comes from a page of another site, which must be allowed.
fn check_origin(shared: &Shared, headers: &HeaderMap) -> Result<bool> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(false) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, authority)| authority);
    if authority.is_some() && authority == host {
        return Ok(false);
    }
    if allows(shared, origin) {
        return Ok(true);
    }
    Err(ApiError::forbidden("pages of this origin may not call this server; see --cors-origin"))
}

fn allows(shared: &Shared, origin: &HeaderValue) -> bool {
    let is = |allowed: &String| match allowed.as_str() {
        "*" => true,
        "localhost" => is_of_this_machine(origin),
        allowed => allowed.as_bytes() == origin.as_bytes(),
    };
    shared.options.origins.iter().any(is)
}

/// Whether a page comes from this machine, whatever its port.
fn is_of_this_machine(origin: &HeaderValue) -> bool {
    let Some((_, authority)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else { return false };
    let name = host_name(authority);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Says what a page of an allowed origin may send: the headers that its client asks for, since each library has some of
/// its own.
fn preflighted(wanted: Option<&HeaderValue>, allowed: bool) -> Response<Body> {
    // 200 with no content: some old clients take no 204.
    let mut response = body::response(StatusCode::OK, "text/plain", "");
    if !allowed {
        return response;
    }
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    let is_list =
        |value: &&HeaderValue| value.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || b"-_, ".contains(b));
    let usual = "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta";
    let allowed = wanted.filter(is_list).cloned().unwrap_or(HeaderValue::from_static(usual));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// The number of the request's key.
fn check_key(shared: &Shared, headers: &HeaderMap) -> Result<Option<usize>> {
    let keys = &shared.options.keys;
    if keys.is_empty() {
        return Ok(None);
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    // Anthropic's clients send theirs so.
    let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    let found = bearer.or(plain).and_then(|key| keys.find(key));
    found.map(Some).ok_or_else(ApiError::unauthorized)
}

#[cfg(test)]
mod tests {
    use super::host_name;

    #[test]
    fn host_names() {
        for (host, name) in [
            ("localhost:8080", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:80", "::1"),
            ("evil.example:1", "evil.example"),
            ("[", ""),
        ] {
            assert_eq!(host_name(host), name);
        }
    }
}
