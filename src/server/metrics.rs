//! `GET /metrics`: everything that is counted, as Prometheus reads it.
//!
//! Names and shapes of vLLM's metrics under `millstream:` where there is such a one, so that its
//! dashboards need a prefix and no more; then what only this engine has. Read from the server's
//! [`super::meter::Meter`] and the engine's gauges; nothing is reset.

use super::meter::Histogram;
use super::state::ServerState;
use millstream_stages::kind::STAGES;
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;

/// Text in Prometheus' format, line by line.
struct Page {
    text: String,
    /// The label that every value has.
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP millstream:{name} {help}");
        let _ = writeln!(self.text, "# TYPE millstream:{name} {kind}");
    }

    /// One value; `labels` are those beside the model's name, with a comma in front.
    fn value(&mut self, name: &str, labels: &str, value: impl Display) {
        let model = &self.model;
        let _ = writeln!(self.text, "millstream:{name}{{model_name=\"{model}\"{labels}}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.value(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let (counts, all, sum_s) = histogram.read();
        for (bound, count) in counts {
            self.value(&format!("{name}_bucket"), &format!(",le=\"{bound}\""), count);
        }
        self.value(&format!("{name}_bucket"), ",le=\"+Inf\"", all);
        self.value(&format!("{name}_sum"), "", sum_s);
        self.value(&format!("{name}_count"), "", all);
    }
}

/// The whole page.
pub fn page(state: &ServerState) -> String {
    let escaped = state.served.name().replace('\\', "\\\\").replace('"', "\\\"");
    let mut page = Page { text: String::with_capacity(8192), model: escaped.replace('\n', " ") };
    of_server(state, &mut page);
    of_engine(state, &mut page);
    page.text
}

fn of_server(state: &ServerState, page: &mut Page) {
    let load = state.served.engine.load();
    let meter = &state.meter;
    page.one("num_requests_running", "gauge", "Answers that are made now", load.running);
    page.one("num_requests_waiting", "gauge", "Answers that wait for their turn", load.waiting);
    let tokens = meter.prompt_tokens.load(Relaxed);
    page.one("prompt_tokens_total", "counter", "Tokens of prompts", tokens);
    let tokens = meter.answer_tokens.load(Relaxed);
    page.one("generation_tokens_total", "counter", "Tokens generated", tokens);
    page.head("request_success_total", "counter", "Answers that ended, by reason");
    for (reason, count) in meter.endings() {
        page.value("request_success_total", &format!(",finished_reason=\"{reason}\""), count);
    }
    page.histogram(
        "time_to_first_token_seconds",
        "From the question to the first token",
        &meter.first_token,
    );
    page.histogram(
        "inter_token_latency_seconds",
        "Between one token and the next",
        &meter.between_tokens,
    );
    page.histogram("e2e_request_latency_seconds", "From the question to the end", &meter.whole);
    page.head("http_responses_total", "counter", "Responses, by the hundreds of their status");
    for (hundreds, count) in ["2xx", "4xx", "5xx"].iter().zip(&meter.statuses) {
        let count = count.load(Relaxed);
        page.value("http_responses_total", &format!(",status=\"{hundreds}\""), count);
    }
    let busy = meter.refused_busy.load(Relaxed);
    page.one("refused_busy_total", "counter", "Questions that found the queue full", busy);
}

fn of_engine(state: &ServerState, page: &mut Page) {
    let engine = &state.served.engine;
    let read = engine.gauges().read();
    let seconds = |ns: u64| ns as f64 / 1e9;
    page.one("expert_hits_total", "counter", "Experts found in a slot", read.expert_hits);
    page.one("expert_misses_total", "counter", "Experts waited for", read.expert_misses);
    page.one("expert_hints_total", "counter", "Experts read ahead as guesses", read.hints);
    page.one("read_bytes_total", "counter", "Bytes read from the model's files", read.bytes_read);
    page.one("reads_failed_total", "counter", "Reads that failed", read.reads_failed);
    page.one("reads_retried_total", "counter", "Reads tried on another copy", read.reads_retried);
    let reading = seconds(read.reading_ns);
    page.one("reading_seconds_total", "counter", "Time in which reads were under way", reading);
    let bytes = read.weight_bytes;
    page.one("weight_bytes_total", "counter", "Bytes of weights gone through", bytes);
    let idle = seconds(read.compute_idle_ns);
    page.one("compute_idle_seconds_total", "counter", "Time the compute seat had no work", idle);
    let bytes = read.bytes_given_back;
    page.one("slot_bytes_given_back_total", "counter", "Bytes given back to the system", bytes);
    page.head("stage_work_seconds_total", "counter", "Time of handling messages, by stage");
    for ((stage, _), ns) in STAGES.iter().zip(read.stage_work_ns) {
        let labels = format!(",stage=\"{stage}\"");
        page.value("stage_work_seconds_total", &labels, seconds(ns));
    }
    page.head("stage_messages_total", "counter", "Messages handled, by stage");
    for ((stage, _), messages) in STAGES.iter().zip(read.stage_messages) {
        page.value("stage_messages_total", &format!(",stage=\"{stage}\""), messages);
    }
    let slots: usize = engine.setting.limits.slots.iter().sum();
    page.one("expert_slots", "gauge", "Expert slots of all layers", slots);
    let memory = &engine.setting.memory;
    page.one("memory_planned_bytes", "gauge", "Memory that was planned at start", memory.total());
}
