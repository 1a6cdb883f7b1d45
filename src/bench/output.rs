//! A bench's report as markdown, JSON, JSON lines or CSV.
//!
//! JSON is one object; JSON lines and CSV have one line a row, with everything that the header says in
//! each, so that lines of several runs can be put together.

use super::findings::Finding;
use super::provenance::Provenance;
use super::speed::SpeedRow;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Write;

/// What memory and drive gave in this run, and what the gauges cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// 10^9 bytes a second that all compute threads read from memory together.
    pub memory_best_gb_s: Option<f64>,
    /// 10^9 bytes a second of plain reads of the model's files: mean of before and after.
    pub disk_best_gb_s: Option<f64>,
    /// Why the drive wasn't measured.
    pub disk_not_measured: Option<String>,
    /// Nanoseconds that the gauges take for one message, measured.
    pub gauge_ns_per_message: f64,
    /// Messages per token of the first answer's row.
    pub gauge_messages_per_token: Option<f64>,
    /// Share of a token's time that the gauges take, by that row: the two above multiplied, over its
    /// time.
    pub gauge_share: Option<f64>,
}

/// All of a bench.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedReport {
    /// Where the figures come from.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// What they are held against.
    #[serde(flatten)]
    pub measured: Measured,
    /// The figures.
    pub rows: Vec<SpeedRow>,
    /// What could be better, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub findings: Option<Vec<Finding>>,
}

impl SpeedReport {
    /// For people.
    pub fn markdown(&self) -> String {
        let mut text = self.provenance.to_string();
        text += &self.measured.markdown();
        text += "\n| test | tok/s | placement | nodes | threads | io | depth | hit % | read MB/token | disk GB/s | disk % \
                 | memory GB/s | memory % | stall % | token hash |\n\
                 |---|---:|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n";
        let percent = |share: Option<f64>| match share {
            Some(share) => format!("{:.1}", share * 100.0),
            None => "-".to_owned(),
        };
        let from = &self.provenance;
        let io = from.io.split(' ').nth(1).unwrap_or("-");
        for row in &self.rows {
            let _ = writeln!(
                text,
                "| {} | {:.2} ± {:.2} | {} | {} | {} | {io} | {} | {} | {:.2} | {:.2} | {} | {:.2} | {} | {} | {}{} |",
                row.test,
                row.tok_s,
                row.tok_s_deviation,
                from.placement,
                from.nodes,
                from.threads,
                from.io_depth,
                percent(row.hit_share),
                row.read_mb_per_token,
                row.disk_read_gb_s,
                percent(row.disk_share),
                row.memory_read_gb_s,
                percent(row.memory_share),
                percent(Some(row.stall_share)),
                row.token_hash,
                if row.hashes_agree { "" } else { " (repetitions differ)" },
            );
        }
        if let Some(findings) = &self.findings {
            text += "\n";
            text += &super::findings::markdown(findings);
        }
        text
    }

    /// One object.
    ///
    /// # Errors
    /// Never: everything in it is plain.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// One object a row.
    ///
    /// # Errors
    /// Never: everything in it is plain.
    pub fn jsonl(&self) -> serde_json::Result<String> {
        let rows = self.flat_rows()?;
        rows.iter().map(|row| serde_json::to_string(row).map(|line| line + "\n")).collect()
    }

    /// A line of names, and one a row; lists are joined with semicolons.
    ///
    /// # Errors
    /// Never: everything in it is plain.
    pub fn csv(&self) -> serde_json::Result<String> {
        let rows = self.flat_rows()?;
        let Some(first) = rows.first() else { return Ok(String::new()) };
        let names: Vec<&String> = first.keys().collect();
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        let mut text = line(names.iter().map(|name| (*name).clone()).collect());
        for row in &rows {
            text += &line(names.iter().map(|name| cell(&row[*name])).collect());
        }
        Ok(text)
    }

    /// Each row with all of the header.
    fn flat_rows(&self) -> serde_json::Result<Vec<Map<String, Value>>> {
        let object = |value: Value| match value {
            Value::Object(map) => map,
            other => unreachable!("structs become objects, not {other}"),
        };
        let provenance = object(serde_json::to_value(&self.provenance)?);
        let measured = object(serde_json::to_value(&self.measured)?);
        let flat = |row: &SpeedRow| {
            let row = object(serde_json::to_value(row)?);
            Ok(row.into_iter().chain(provenance.clone()).chain(measured.clone()).collect())
        };
        self.rows.iter().map(flat).collect()
    }
}

impl Measured {
    fn markdown(&self) -> String {
        let best = |what: Option<f64>, otherwise: &str| match what {
            Some(gb_s) => format!("{gb_s:.2} GB/s"),
            None => format!("not measured{otherwise}"),
        };
        let reason = self.disk_not_measured.as_ref().map(|reason| format!(" ({reason})"));
        let mut text = format!(
            "- ceilings: memory {}, drive {}\n",
            best(self.memory_best_gb_s, ""),
            best(self.disk_best_gb_s, &reason.unwrap_or_default())
        );
        let share = self.gauge_share.zip(self.gauge_messages_per_token).map(|(share, messages)| {
            format!(" x {messages:.0} messages a token = {:.2} % of a token's time", share * 100.0)
        });
        let _ = writeln!(
            text,
            "- gauges: {:.0} ns a message{}",
            self.gauge_ns_per_message,
            share.unwrap_or_default()
        );
        text
    }
}

/// A value as a cell of CSV (RFC 4180).
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(";"),
        other => other.to_string(),
    };
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let cell = |json: &str| cell(&serde_json::from_str(json).expect("JSON"));
        assert_eq!(cell("null"), "");
        assert_eq!(cell("1.5"), "1.5");
        assert_eq!(cell("\"a, b\""), "\"a, b\"");
        assert_eq!(cell("\"say \\\"so\\\"\""), "\"say \"\"so\"\"\"");
        assert_eq!(cell("[1, 2]"), "1;2");
    }
}
