//! Measurements of whole generations, for people who choose machines and settings.
//!
//! | file | what it measures |
//! |---|---|
//! | `speed.rs` | prefill and decode, as llama-bench names them |
//! | `stream.rs` | decode while experts stream: cold, warm and with rotating prompts |
//! | `hops.rs` | how long a message takes from one spinning thread to another |
//! | `kernels/` | the kernels beside a plain read of the same memory |
//! | `provenance.rs` | where the figures come from |
//! | `findings.rs` | what they say, each with the flag that would change it |
//! | `output.rs`, `report.rs` | figures as tables, JSON and CSV |
//! | `histograms.rs`, `pictures.rs` | everything that was recorded, for HdrHistogram's tools and for people |
//! | `ids.rs`, `figures.rs` | what is fed, and how several runs become one figure |

pub mod figures;
pub mod findings;
mod histograms;
pub mod hops;
pub mod ids;
pub mod kernels;
mod output;
pub mod pictures;
mod provenance;
mod report;
mod speed;
mod stream;

pub use histograms::{Recorded, WriteError};
pub use output::{Measured, SpeedReport};
pub use provenance::Provenance;
pub use report::{Report, Row};
pub use speed::{Best, SpeedBench, SpeedRow, Stretch, Test, TestKind};
pub use stream::{StreamBench, Workload};
