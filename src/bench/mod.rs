//! Measurements of whole generations, for people who choose machines and settings.
//!
//! | file | what it measures |
//! |---|---|
//! | `stream.rs` | decode while experts stream: cold, warm and with rotating prompts |
//! | `report.rs` | figures as a table or as JSON |

mod report;
mod stream;

pub use report::{Report, Row};
pub use stream::{StreamBench, Workload};
