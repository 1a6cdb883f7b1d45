//! Who is let in: keys, hosts, origins.

use crate::client::{get, send};
use crate::setup::{common, options, start};
use millstream::server::ServerOptions;

#[test]
fn key_is_asked_for_everywhere_but_at_health() {
    let server = start(1, &ServerOptions { api_key: Some("sesame".into()), ..options() });
    let address = server.address();
    for (path, method) in
        [("/v1/models", "GET"), ("/v1/chat/completions", "POST"), ("/nothing", "GET")]
    {
        let refused = send(address, method, path, &[], b"{}");
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    }
    let refused = send(address, "POST", "/v1/messages", &[("x-api-key", "open")], b"{}");
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
    assert_eq!(get(address, "/health").status, 200);
    for header in [("authorization", "Bearer sesame"), ("x-api-key", "sesame")] {
        assert_eq!(send(address, "GET", "/v1/models", &[header], b"").status, 200);
    }
}

#[test]
fn other_hosts_names_and_other_sites_pages_are_refused() {
    let host = send(common(), "GET", "/v1/models", &[("host", "evil.example")], b"");
    assert_eq!(host.status, 403);
    let page = send(common(), "GET", "/v1/models", &[("origin", "https://evil.example")], b"");
    assert_eq!(page.status, 403);
    assert_eq!(page.header("access-control-allow-origin"), None);
}

#[test]
fn listed_origin_gets_its_preflight_and_its_header() {
    let origin = "https://chat.example";
    let server = start(1, &ServerOptions { allow_origins: vec![origin.into()], ..options() });
    let headers = [("origin", origin), ("access-control-request-method", "POST")];
    let preflight = send(server.address(), "OPTIONS", "/v1/chat/completions", &headers, b"");
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some(origin));
    let allowed = preflight.header("access-control-allow-headers").expect("headers");
    assert!(allowed.contains("authorization") && allowed.contains("x-api-key"));
    let response = send(server.address(), "GET", "/v1/models", &headers[..1], b"");
    assert_eq!(response.header("access-control-allow-origin"), Some(origin));
}
