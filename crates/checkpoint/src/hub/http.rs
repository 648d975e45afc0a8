//! Requests to the hub: redirects followed by hand, errors told apart, transient ones retried.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::{HubError, HubOptions};

const MAX_REDIRECTS: usize = 8;
const MAX_ATTEMPTS: u32 = 5;
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Far above the file list of any model.
const MAX_JSON_BYTES: u64 = 64 << 20;

pub(super) struct Http {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    retry_wait: Duration,
}

/// One file of one commit.
pub(super) struct RemoteFile {
    pub(super) repo: String,
    pub(super) file: String,
    path: String,
}

impl RemoteFile {
    pub(super) fn new(repo: &str, commit: &str, file: &str) -> Self {
        let path = format!("/{repo}/resolve/{commit}/{}", encode(file));
        Self { repo: repo.to_string(), file: file.to_string(), path }
    }
}

/// What the hub says about a file before sending it.
pub(super) struct Head {
    /// Name of the blob: the sha256 of a large file, the git hash of a small one.
    pub(super) etag: String,
    pub(super) bytes: Option<u64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Redirects {
    /// To wherever they lead.
    Follow,
    /// Within the host; the answer that leads elsewhere is the result.
    SameHost,
}

impl Http {
    pub(super) fn new(options: &HubOptions) -> Self {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("outrider/", env!("CARGO_PKG_VERSION")))
            // Sizes and ranges count the bytes of the file, not of a compressed form.
            .accept_encoding("identity")
            .timeout_connect(Some(options.timeout))
            .timeout_recv_response(Some(options.timeout))
            .timeout_per_read(Some(options.timeout))
            .build()
            .new_agent();
        Self {
            agent,
            endpoint: options.endpoint.clone(),
            token: options.token.clone(),
            retry_wait: options.retry_wait,
        }
    }

    /// Runs a request until it succeeds, fails for good, or has failed too often.
    pub(super) fn retrying<T>(
        &self,
        mut request: impl FnMut() -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        let mut attempt = 1;
        loop {
            match request() {
                Err(error) if self.may_retry(attempt, &error) => attempt += 1,
                result => return result,
            }
        }
    }

    /// Whether to try again after attempt `attempt` failed; if so, waits first.
    pub(super) fn may_retry(&self, attempt: u32, error: &HubError) -> bool {
        if !error.is_transient() || attempt >= MAX_ATTEMPTS {
            return false;
        }
        let wait = match error {
            HubError::Status { retry_after: Some(seconds), .. } => Duration::from_secs(*seconds),
            _ => self.retry_wait * 2u32.pow(attempt - 1),
        };
        thread::sleep(wait.min(MAX_WAIT));
        true
    }

    /// The JSON at a path of the endpoint.
    pub(super) fn json(&self, path: &str) -> Result<Value, HubError> {
        let url = format!("{}{path}", self.endpoint);
        let what = path.trim_start_matches("/api/models/").replace("/revision/", " at revision ");
        let mut response = self.send("GET", &url, None, Redirects::Follow)?;
        self.check_status(&response, &what, &url)?;
        let body = response.body_mut().with_config().limit(MAX_JSON_BYTES).read_to_vec();
        let body = body.map_err(|e| network(&url, &e))?;
        serde_json::from_slice(&body)
            .map_err(|e| HubError::BadAnswer { url: bare(&url), problem: e.to_string() })
    }

    pub(super) fn head(&self, file: &RemoteFile) -> Result<Head, HubError> {
        let url = format!("{}{}", self.endpoint, file.path);
        let response = self.send("HEAD", &url, None, Redirects::SameHost)?;
        if !response.status().is_redirection() {
            self.check_status(&response, &format!("{} of {}", file.file, file.repo), &url)?;
        }
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        let etag = header("x-linked-etag")
            .or(header("etag"))
            .map(|etag| etag.trim_start_matches("W/").trim_matches('"'))
            .filter(|etag| is_blob_name(etag));
        let Some(etag) = etag else {
            return Err(HubError::BadAnswer {
                url: bare(&url),
                problem: "no usable etag; is this a mirror of the hub?".to_string(),
            });
        };
        // The length of a redirect is the length of its own, empty, body.
        let own_length = response.status().is_success().then(|| header("content-length")).flatten();
        let bytes = header("x-linked-size").or(own_length).and_then(|n| n.parse().ok());
        Ok(Head { etag: etag.to_string(), bytes })
    }

    /// The body of a file, from byte `from` on if that is above zero. The answer may be the whole
    /// file all the same (status 200 and not 206), or 416 when there is nothing from there on.
    pub(super) fn get(&self, file: &RemoteFile, from: u64) -> Result<Response<Body>, HubError> {
        let url = format!("{}{}", self.endpoint, file.path);
        let range = (from > 0).then(|| format!("bytes={from}-"));
        let response = self.send("GET", &url, range.as_deref(), Redirects::Follow)?;
        if from == 0 || response.status() != StatusCode::RANGE_NOT_SATISFIABLE {
            self.check_status(&response, &format!("{} of {}", file.file, file.repo), &url)?;
        }
        Ok(response)
    }

    fn send(
        &self,
        method: &str,
        url: &str,
        range: Option<&str>,
        redirects: Redirects,
    ) -> Result<Response<Body>, HubError> {
        let bad = |problem: String| HubError::BadAnswer { url: bare(url), problem };
        let home = parse(&self.endpoint).map_err(bad)?;
        let mut at = parse(url).map_err(bad)?;
        for _ in 0..MAX_REDIRECTS {
            let mut request = match method {
                "HEAD" => self.agent.head(&at),
                _ => self.agent.get(&at),
            };
            if let Some(token) = self.token.as_ref().filter(|_| same_host(&at, &home)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header(header::RANGE, range);
            }
            let response = request.call().map_err(|e| network(&at.to_string(), &e))?;
            let location = response.headers().get(header::LOCATION).and_then(|v| v.to_str().ok());
            let (true, Some(location)) = (response.status().is_redirection(), location) else {
                return Ok(response);
            };
            let next = join(&at, location).map_err(bad)?;
            if redirects == Redirects::SameHost && !same_host(&next, &at) {
                return Ok(response);
            }
            if at.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(bad("a redirect from https to http".to_string()));
            }
            at = next;
        }
        Err(bad("too many redirects".to_string()))
    }

    fn check_status<T>(
        &self,
        response: &Response<T>,
        what: &str,
        url: &str,
    ) -> Result<(), HubError> {
        let what = what.to_string();
        match response.status().as_u16() {
            200..=299 => Ok(()),
            404 => Err(HubError::NotFound { what }),
            status @ (401 | 403) => {
                Err(HubError::Refused { what, status, has_token: self.token.is_some() })
            }
            status => {
                let after = response.headers().get(header::RETRY_AFTER);
                let retry_after = after.and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
                Err(HubError::Status { url: bare(url), status, retry_after })
            }
        }
    }
}

pub(super) fn network(url: &str, error: &dyn std::fmt::Display) -> HubError {
    HubError::Network { url: bare(url), reason: error.to_string() }
}

/// A URL without its query, where signatures stand.
fn bare(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_string()
}

fn parse(url: &str) -> Result<Uri, String> {
    match url.parse::<Uri>() {
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) => Ok(uri),
        _ => Err(format!("`{}` is not an http or https URL", bare(url))),
    }
}

/// Scheme, host and port agree: the same server, as far as secrets go.
fn same_host(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

/// Where a `Location` leads: a whole URL, or a path on the same server.
fn join(base: &Uri, location: &str) -> Result<Uri, String> {
    match (base.scheme_str(), base.authority()) {
        (Some(scheme), Some(host)) if location.starts_with('/') && !location.starts_with("//") => {
            parse(&format!("{scheme}://{host}{location}"))
        }
        _ => parse(location),
    }
}

/// Percent-encodes one segment of a path.
pub(super) fn encode(segment: &str) -> String {
    let mut encoded = String::new();
    for byte in segment.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// An etag that is safe as a file name.
fn is_blob_name(etag: &str) -> bool {
    (1..=128).contains(&etag.len())
        && !etag.starts_with('.')
        && etag.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}
