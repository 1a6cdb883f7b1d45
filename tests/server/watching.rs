//! What can be watched: metrics and the page.

use crate::client::{get, post};
use crate::openai::chat;
use crate::setup::{options, start, wait_until_idle};
use std::time::Duration;

/// A metric's value.
fn value(page: &str, name: &str) -> f64 {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let mut found = lines.filter_map(|line| line.strip_prefix("millstream:")?.strip_prefix(name));
    let value = found.next().unwrap_or_else(|| panic!("no {name}"));
    value.rsplit(' ').next().expect("a value").parse().expect("a number")
}

#[test]
fn metrics_count_what_happened() {
    let server = start(2, &options());
    assert_eq!(post(server.address(), "/v1/chat/completions", &chat("The", 9)).status, 200);
    assert_eq!(post(server.address(), "/v1/chat/completions", &chat("The", 0)).status, 400);
    wait_until_idle(&server, Duration::from_secs(2));
    let response = get(server.address(), "/metrics");
    assert!(response.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let page = response.text();
    assert_eq!(value(page, "generation_tokens_total{"), 9.0);
    assert_eq!(value(page, "time_to_first_token_seconds_count{"), 1.0);
    assert_eq!(value(page, "inter_token_latency_seconds_count{"), 8.0);
    let length = "request_success_total{model_name=\"nano-glm-dsa\",finished_reason=\"length\"}";
    assert_eq!(value(page, length), 1.0);
    assert_eq!(
        value(page, "http_responses_total{model_name=\"nano-glm-dsa\",status=\"4xx\"}"),
        1.0
    );
    assert_eq!(value(page, "num_requests_running{"), 0.0);
    assert!(value(page, "stage_work_seconds_total{") > 0.0);
    assert!(value(page, "weight_bytes_total{") > 0.0);
    // Every value has its kind, and buckets grow up to the count.
    let buckets: Vec<f64> = page
        .lines()
        .filter(|line| line.starts_with("millstream:inter_token_latency_seconds_bucket"))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(buckets.is_sorted() && buckets.last() == Some(&8.0), "{buckets:?}");
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('{').next().unwrap();
        let whole = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let kind = |name: &str| page.contains(&format!("# TYPE {name} "));
        assert!(kind(name) || whole.is_some_and(kind), "{name} has no kind");
    }
}

#[test]
fn page_asks_nothing_of_other_sites() {
    let server = start(1, &options());
    let response = get(server.address(), "/");
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").unwrap().starts_with("text/html"));
    let policy = response.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"));
    let page = response.text().replace("http://www.w3.org/2000/svg", "");
    assert!(!page.contains("http://") && !page.contains("https://"), "it names another site");
}
