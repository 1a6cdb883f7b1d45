//! Who may come in: keys, hosts and origins.
//!
//! A browser on this machine can be made to call a server on it (another site's page, or a name that
//! suddenly means 127.0.0.1), so the host that a request names and the origin of its page are looked
//! at, not only its key.

use super::errors::{Fault, FaultKind};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What is let in.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Digest of the key; none lets everybody in.
    key: Option<[u8; 32]>,
    /// Names, without ports, that a request may call this server; none allows all.
    hosts: Option<Vec<String>>,
    /// Origins of pages that may call it.
    origins: Vec<String>,
}

/// Names of this machine itself.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl Gate {
    /// A gate. `local` says that the server is heard on this machine only.
    pub fn new(key: Option<&str>, local: bool, hosts: &[String], origins: &[String]) -> Gate {
        let named = |host: &String| host.to_ascii_lowercase();
        let listed = LOCAL.iter().map(|&host| host.to_owned()).chain(hosts.iter().map(named));
        // With a key, a name that lies gains nothing; without a list, a server of the net has any name.
        let restricted = !hosts.is_empty() || local && key.is_none();
        Gate {
            key: key.map(|key| Sha256::digest(key).into()),
            hosts: restricted.then(|| listed.collect()),
            origins: origins.to_vec(),
        }
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// When its host, its origin or its key isn't right.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Fault> {
        self.check_host(uri, headers)?;
        self.check_origin(headers)?;
        // The page has no secrets, and asks for the key where one is needed; health is for watchdogs.
        let open = method == Method::OPTIONS || ["/", "/health"].contains(&uri.path());
        match &self.key {
            Some(key) if !open => check_key(key, headers),
            _ => Ok(()),
        }
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Fault> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = uri.authority().map(|authority| authority.as_str()).or(named).unwrap_or("");
        let host = without_port(host).to_ascii_lowercase();
        match hosts.contains(&host) {
            true => Ok(()),
            false => Err(Fault::new(
                FaultKind::Forbidden,
                "this server isn't called by that host name; start it with --allow-host NAME",
            )),
        }
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        match self.allowed_origin(headers).is_some() || is_own(origin, headers) {
            true => Ok(()),
            false => Err(Fault::new(
                FaultKind::Forbidden,
                "pages of that origin may not call this server; start it with --allow-origin ORIGIN",
            )),
        }
    }

    /// The origin to name in the response, if it is on the list.
    pub fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        let listed = |listed: &String| listed == "*" || listed.eq_ignore_ascii_case(text);
        self.origins.iter().any(listed).then(|| origin.clone())
    }
}

/// A page of this server itself.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let (Ok(origin), Some(Ok(host))) =
        (origin.to_str(), headers.get(header::HOST).map(HeaderValue::to_str))
    else {
        return false;
    };
    let origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Compares digests in constant time, so that neither the key's length nor its beginning shows.
fn check_key(key: &[u8; 32], headers: &HeaderMap) -> Result<(), Fault> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let bytes = value.as_bytes();
        let scheme = bytes.get(..7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| &bytes[7..])
    });
    let given = bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes));
    let message = match given {
        Some(given) => {
            let given: [u8; 32] = Sha256::digest(given).into();
            if given.ct_eq(key).into() {
                return Ok(());
            }
            "that isn't this server's API key"
        }
        None => "this server needs its API key: Authorization: Bearer KEY, or x-api-key: KEY",
    };
    Err(Fault::new(FaultKind::NoKey, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(gate: &Gate, path: &str, headers: &[(&'static str, &str)]) -> Option<FaultKind> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        gate.check(&Method::POST, &path.parse().unwrap(), &map).err().map(|fault| fault.kind)
    }

    #[test]
    fn key_is_taken_from_either_header_and_health_needs_none() {
        let gate = Gate::new(Some("secret"), true, &[], &[]);
        assert_eq!(check(&gate, "/v1/models", &[]), Some(FaultKind::NoKey));
        assert_eq!(check(&gate, "/v1/models", &[("authorization", "Bearer secret")]), None);
        assert_eq!(check(&gate, "/v1/models", &[("authorization", "bearer secret")]), None);
        assert_eq!(check(&gate, "/v1/models", &[("x-api-key", "secret")]), None);
        for wrong in ["secre", "secret ", "secrets", ""] {
            let outcome = check(&gate, "/v1/models", &[("x-api-key", wrong)]);
            assert_eq!(outcome, Some(FaultKind::NoKey), "{wrong:?}");
        }
        assert_eq!(check(&gate, "/health", &[]), None);
    }

    #[test]
    fn without_a_key_only_this_machines_names_are_answered() {
        let gate = Gate::new(None, true, &["box.lan".into()], &[]);
        for host in ["localhost:8080", "127.0.0.1", "[::1]:80", "BOX.lan:1"] {
            assert_eq!(check(&gate, "/", &[("host", host)]), None, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:80", ""] {
            let outcome = check(&gate, "/", &[("host", host)]);
            assert_eq!(outcome, Some(FaultKind::Forbidden), "{host}");
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused_unless_listed() {
        let gate = Gate::new(None, true, &[], &["https://chat.example".into()]);
        let from = |origin| check(&gate, "/", &[("host", "localhost:1"), ("origin", origin)]);
        assert_eq!(from("https://chat.example"), None);
        assert_eq!(from("http://localhost:1"), None, "its own page");
        assert_eq!(from("http://localhost:2"), Some(FaultKind::Forbidden));
        assert_eq!(from("null"), Some(FaultKind::Forbidden));
    }
}
