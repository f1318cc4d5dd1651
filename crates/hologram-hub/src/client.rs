//! Requests to the hub.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::error::{HubError, Result, io};
use crate::listing::Listing;
use crate::request::Repo;
use crate::settings::Settings;

/// Largest list of files that is read.
const MAX_LIST: u64 = 64 << 20;
/// What a path keeps in an address.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Longest wait that a busy hub may ask for.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A connection pool to one hub.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// How a request failed.
#[derive(Debug)]
pub enum Failure {
    /// Another try may succeed, after this long if the hub says so.
    Passing(String, Option<Duration>),
    /// No further try will.
    Final(HubError),
}

impl Client {
    /// A client that waits and encrypts as the settings say.
    ///
    /// # Errors
    /// When the certificates cannot be read.
    pub fn new(settings: &Settings) -> Result<Client> {
        let roots = match &settings.certificates {
            None => RootCerts::WebPki,
            Some(path) => {
                let pem = std::fs::read(path).map_err(io(path))?;
                let certificates = parse_pem(&pem).filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                });
                let certificates: Vec<_> = certificates.collect();
                if certificates.is_empty() {
                    let reason = format!("{} has no certificate in PEM form", path.display());
                    return Err(HubError::BadSetting { name: "SSL_CERT_FILE", reason });
                }
                RootCerts::new_with_certs(&certificates)
            }
        };
        // Nothing but Rust is needed to build this provider.
        let provider = Arc::new(rustls_graviola::default_provider());
        let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build();
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // Once encrypted, always encrypted.
            .https_only(settings.endpoint.starts_with("https://"))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("hologram/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections_per_host(settings.connections)
            .timeout_connect(Some(settings.patience))
            .timeout_recv_response(Some(settings.patience))
            .timeout_per_read(Some(settings.patience));
        if !settings.proxies {
            config = config.proxy(None);
        }
        Ok(Client {
            agent: config.build().new_agent(),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
        })
    }

    /// Whether requests go to a proxy.
    pub fn proxied(&self) -> bool {
        self.agent.config().proxy().is_some()
    }

    /// Address of a file at a commit.
    pub fn address(&self, repo: &Repo, commit: &str, path: &str) -> String {
        let parts: Vec<String> = path.split('/').map(|part| utf8_percent_encode(part, PATH).to_string()).collect();
        format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, parts.join("/"))
    }

    /// The files of a repository's main branch.
    pub fn list(&self, repo: &Repo) -> Result<Listing, Failure> {
        let url = format!("{}/api/models/{repo}/revision/main?blobs=true", self.endpoint);
        let response = self.get(&url, repo, None)?;
        let mut json = Vec::new();
        let read = response.into_body().into_reader().take(MAX_LIST + 1).read_to_end(&mut json);
        read.map_err(|e| Failure::Passing(e.to_string(), None))?;
        let bad = |reason| Failure::Final(HubError::BadReply { url: url.clone(), reason });
        if json.len() as u64 > MAX_LIST {
            return Err(bad(format!("the list of files has over {} MB", MAX_LIST >> 20)));
        }
        Listing::parse(&json).map_err(bad)
    }

    /// The bytes of a file from `start` up to `end`, of `size`. `None` if the server sends whole files only.
    pub fn range(
        &self,
        url: &str,
        repo: &Repo,
        (start, end, size): (u64, u64, u64),
    ) -> Result<Option<impl Read + use<>>, Failure> {
        let response = self.get(url, repo, Some(format!("bytes={start}-{}", end - 1)))?;
        if response.status() == StatusCode::OK {
            // Without ranges, the answer begins with the first byte.
            return Ok((start == 0).then(|| response.into_body().into_reader()));
        }
        let range = header(&response, "content-range");
        if range.as_deref() != Some(&format!("bytes {start}-{}/{size}", end - 1)) {
            let range = range.unwrap_or_else(|| "without saying which".into());
            let reason = format!("asked for bytes {start} to {} of {size}, the server sent {range}", end - 1);
            return Err(Failure::Passing(reason, None));
        }
        Ok(Some(response.into_body().into_reader()))
    }

    fn get(&self, url: &str, repo: &Repo, range: Option<String>) -> Result<Response<Body>, Failure> {
        if self.endpoint.starts_with("https://") && !graviola::util::is_cpu_supported() {
            return Err(Failure::Final(HubError::Processor));
        }
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let response = request.call().map_err(|e| passing(e, url))?;
        if matches!(response.status(), StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Ok(response);
        }
        Err(self.failure(&response, url, repo))
    }

    /// What an answer other than success means.
    fn failure(&self, response: &Response<Body>, url: &str, repo: &Repo) -> Failure {
        let (status, code) = (response.status(), header(response, "x-error-code").unwrap_or_default());
        let words = header(response, "x-error-message").unwrap_or_default();
        let (repo, endpoint, with_token) = (repo.to_string(), self.endpoint.clone(), self.token.is_some());
        let busy = [408, 429, 500, 502, 503, 504].contains(&status.as_u16());
        if busy {
            let seconds = header(response, "retry-after").and_then(|text| text.parse().ok());
            let wait = seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_WAIT));
            return Failure::Passing(format!("the server answered {status}"), wait);
        }
        Failure::Final(match (status.as_u16(), code.as_str()) {
            (401 | 403, "GatedRepo") => HubError::Gated { repo, endpoint, with_token },
            (401 | 404, "RepoNotFound" | "RevisionNotFound") => HubError::NoModel { repo, endpoint, with_token },
            (401, _) if with_token => {
                HubError::Token { endpoint, reason: if words.is_empty() { status.to_string() } else { words } }
            }
            (401 | 404, _) if url.contains("/api/models/") => HubError::NoModel { repo, endpoint, with_token },
            _ => {
                let words = if words.is_empty() { String::new() } else { format!(": {words}") };
                HubError::BadReply { url: url.into(), reason: format!("the server answered {status}{words}") }
            }
        })
    }
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    let text = response.headers().get(name)?.to_str().ok()?;
    Some(text.chars().take(200).collect())
}

/// Whether an error of the transport may pass.
fn passing(e: ureq::Error, url: &str) -> Failure {
    let final_one = |reason: String| Failure::Final(HubError::Network { url: url.into(), reason });
    let not_secure = |reason: String| {
        let own = "SSL_CERT_FILE names certificates of a network of your own";
        final_one(format!("the connection is not secure: {reason}; {own}"))
    };
    let tls = |e: &std::io::Error| e.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    match e {
        ureq::Error::RequireHttpsOnly(to) => final_one(format!("the server sends on to {to}, which is not encrypted")),
        ureq::Error::TooManyRedirects => final_one("the server sends on from address to address without end".into()),
        ureq::Error::BadUri(_) | ureq::Error::RedirectFailed => final_one(e.to_string()),
        ureq::Error::Io(e) if tls(&e) => not_secure(e.to_string()),
        ureq::Error::Rustls(e) => not_secure(e.to_string()),
        e => Failure::Passing(e.to_string(), None),
    }
}
