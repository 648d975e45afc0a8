//! API keys: who may call, and what is open to everybody.
//!
//! Keys are kept as hashes, and every hash is compared to its end, so that neither the time nor the
//! memory of this process tells a wrong key how close it was.

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// The keys that open the routes; without any, everything is open.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// Hashes of the keys of clients.
    clients: Vec<[u8; 32]>,
    /// Hashes of the keys of operators; where there are none, a client's key is enough.
    admins: Vec<[u8; 32]>,
}

/// What a route asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: probes and scrapes have no keys.
    Open,
    /// A client's or an operator's key.
    Client,
    /// An operator's key, where there are any; else a client's.
    Admin,
}

impl Keys {
    /// Keys of clients and of operators, as they are sent in requests.
    pub fn new<'a>(
        clients: impl IntoIterator<Item = &'a str>,
        admins: impl IntoIterator<Item = &'a str>,
    ) -> Keys {
        Keys {
            clients: clients.into_iter().map(hash).collect(),
            admins: admins.into_iter().map(hash).collect(),
        }
    }

    /// # Errors
    /// When the route needs a key and the request has none that opens it.
    pub fn check(&self, access: Access, headers: &HeaderMap) -> Result<(), ApiError> {
        let needed = match access {
            Access::Open => return Ok(()),
            Access::Client if self.clients.is_empty() => return Ok(()),
            Access::Client => [&self.clients[..], &self.admins[..]],
            Access::Admin if self.admins.is_empty() && self.clients.is_empty() => return Ok(()),
            Access::Admin if self.admins.is_empty() => [&self.clients[..], &[]],
            Access::Admin => [&[], &self.admins[..]],
        };
        let sent = hash(bearer(headers).ok_or(ApiError::Unauthorized)?);
        let any = needed.concat().iter().fold(false, |found, key| found | equal(key, &sent));
        if any { Ok(()) } else { Err(ApiError::Unauthorized) }
    }
}

/// The key of `Authorization: Bearer KEY`, or of Anthropic's and Azure's headers.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = |name| headers.get(name)?.to_str().ok();
    let bearer = value(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.or_else(|| value("x-api-key")).or_else(|| value("api-key"))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Compares to the end whatever is found before.
fn equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0, |d, (a, b)| std::hint::black_box(d | (a ^ b)));
    difference == 0
}

/// What the route at `path` asks for.
pub fn access(path: &str) -> Access {
    match path {
        "/health" | "/health_generate" | "/ready" | "/ping" | "/metrics" => Access::Open,
        "/flush_cache" | "/abort_request" => Access::Admin,
        _ => Access::Client,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    fn check(keys: &Keys, access: Access, header: &str) -> bool {
        keys.check(access, &sent("authorization", header)).is_ok()
    }

    #[test]
    fn without_keys_everything_is_open() {
        for access in [Access::Open, Access::Client, Access::Admin] {
            assert!(Keys::default().check(access, &HeaderMap::new()).is_ok());
        }
    }

    #[test]
    fn a_client_s_key_opens_what_clients_need() {
        let keys = Keys::new(["secret", "other"], []);
        assert!(keys.check(Access::Open, &HeaderMap::new()).is_ok());
        assert!(keys.check(Access::Client, &HeaderMap::new()).is_err());
        assert!(check(&keys, Access::Client, "Bearer secret"));
        assert!(check(&keys, Access::Client, "bearer other"));
        assert!(check(&keys, Access::Admin, "Bearer secret"));
        for wrong in ["Bearer secre", "Bearer secrett", "Bearer ", "Basic secret", "secret"] {
            assert!(!check(&keys, Access::Client, wrong), "{wrong}");
        }
        assert!(keys.check(Access::Client, &sent("x-api-key", "secret")).is_ok());
    }

    #[test]
    fn an_operator_s_key_is_needed_where_there_is_one() {
        let keys = Keys::new(["secret"], ["root"]);
        assert!(!check(&keys, Access::Admin, "Bearer secret"));
        assert!(check(&keys, Access::Admin, "Bearer root"));
        assert!(check(&keys, Access::Client, "Bearer root"));
        let keys = Keys::new([], ["root"]);
        assert!(keys.check(Access::Client, &HeaderMap::new()).is_ok());
        assert!(keys.check(Access::Admin, &HeaderMap::new()).is_err());
    }
}
